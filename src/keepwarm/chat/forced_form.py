"""The form an answer must have, from what its caller chose: a call, a text by a schema, or either.

A model that thinks may do so first, where its template marks thoughts. Where a caller leaves the
model free there is no grammar. "auto" without `parallel` is not enforced: the model is free to begin
with words, and nothing says where they end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from keepwarm.chat.call_markup import HARMONY, Form, call_markup, json_form, literal, sequence, tag
from keepwarm.chat.enforced_schema import answer_schema, arguments_schema
from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.parsing.answer_markup import AnswerMarkup
from keepwarm.chat.request import ChatRequest, ToolChoice
from keepwarm.core.errors import BadRequest
from keepwarm.core.grammar import Grammar

MAX_LINE_BREAKS = 4
"""Between a thought and what follows it."""

_SHOWN_NAMES = 20


class ForcedForms:
    """Of one model's answers. Threads share it."""

    def __init__(
        self, markup: AnswerMarkup, *, template: str, control_id: Callable[[str], int | None]
    ) -> None:
        """`template`: the source of the chat template. `control_id`: the id of the control token with
        a spelling, where there is one."""
        self._markup = markup
        self._call_markup = call_markup(markup.name, template)
        self._speaks_harmony = self._call_markup is HARMONY
        self._control_id = control_id

    def form(self, request: ChatRequest, *, prompt_end: str) -> Grammar | None:
        """None: any answer will do. `prompt_end`: the prompt's last words, control tokens spelled out.

        Raises `BadRequest` naming the field, and the tool or the place in a schema that is at fault.
        """
        calls = self._calls(request)
        words = self._words(request, calls)
        forms = [form for form in (calls, words) if form is not None]
        if not forms:
            return None
        answer = forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}
        whole = sequence(self._thought(request.reasoning, prompt_end), answer)
        return Grammar(
            kind="structural_tag",
            source=json.dumps({"type": "structural_tag", "format": whole}, ensure_ascii=False),
            field="tool_choice" if words is None else "response_format",
            markup_tokens=self._markup_tokens(request.chat.callable_tools if calls else ()),
        )

    def _calls(self, request: ChatRequest) -> Form | None:
        """What calls look like, where one is forced or allowed beside text by a schema."""
        choice, tools = request.tool_choice, request.chat.callable_tools
        if choice.mode == "none" or (choice.mode == "auto" and (request.output_schema is None or not tools)):
            return None
        if self._markup.tool_format is None:
            if choice.mode == "auto":
                return None
            raise BadRequest("tool_choice: no call can be forced where none are read (--tool-format none)")
        chosen = _chosen_tools(choice, tools)
        schemas = [(tool.name, arguments_schema(tool.name, tool.parameters)) for tool in chosen]
        return self._call_markup.calls(schemas, several=choice.parallel and choice.mode != "named")

    def _words(self, request: ChatRequest, calls: Form | None) -> Form | None:
        """What text looks like, where there may be any."""
        if request.output_schema is None or (calls is not None and request.tool_choice.mode != "auto"):
            return None
        before = "<|channel|>final<|message|>" if self._speaks_harmony else ""
        return sequence(literal(before), json_form(answer_schema(request.output_schema)))

    def _thought(self, wanted: bool | None, prompt_end: str) -> Form | None:
        """What stands before the answer: the rest of a thought, or a whole one unless it is unwanted."""
        if self._speaks_harmony:
            begin, end = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
            if wanted is False:
                return None
            return _optional(tag(begin, {"type": "any_text"}, end))
        marks = self._markup.reasoning
        gap = {"type": "regex", "pattern": f"\\n{{0,{MAX_LINE_BREAKS}}}"}
        if marks.opened_by(prompt_end):
            return sequence(tag("", {"type": "any_text"}, marks.close), gap)
        if not self._markup.ends_thoughts or wanted is False or marks.closed_by(prompt_end):
            return None
        return _optional(sequence(tag(marks.open, {"type": "any_text"}, marks.close), gap))

    def _markup_tokens(self, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        tokens = {self._control_id(spelling) for spelling in self._markup.control_texts(tools)}
        return tuple(sorted(token for token in tokens if token is not None))


def _chosen_tools(choice: ToolChoice, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
    """Raises `BadRequest` where there is none."""
    if choice.mode != "named":
        if not tools:
            raise BadRequest("tool_choice: a call is forced, but tools is empty")
        return tools
    named = [tool for tool in tools if tool.name == choice.name]
    if not named:
        names = ", ".join(tool.name for tool in tools[:_SHOWN_NAMES]) or "none"
        more = f", … ({len(tools)} in all)" if len(tools) > _SHOWN_NAMES else ""
        raise BadRequest(f"tool_choice: no tool is named {choice.name!r}; declared are {names}{more}")
    return named[:1]


def _optional(form: Form) -> Form:
    return {"type": "optional", "content": form}
