"""How a template takes calls and their results, learnt by trial.

Families differ: arguments as an object or as JSON text, ids of any length or of nine characters,
several calls a message or one. Each is tried on a small conversation; what counts is that the
template neither refuses it nor loses a call, its arguments or its result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from keepwarm.chat.messages import Message, Part, Reasoning, Role, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.template import ChatTemplate
from keepwarm.chat.template_messages import MessageForm, MessageWriter
from keepwarm.core.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A conversation, and what must show in its rendering. `answer` is what follows the first
    question."""

    answer: tuple[Message, ...]
    shows: tuple[str, ...]


def learn_call_form(template: ChatTemplate, form: MessageForm) -> MessageForm:
    """The form with what the template takes of calls; where nothing works, as it was."""
    if not form.takes_tools:
        return form
    forms = [
        replace(form, takes_long_call_ids=long, arguments_as_text=text)
        for long in (True, False)
        for text in (False, True)
    ]
    form = _first_that_fits(template, _ONE_CALL, forms)
    form = _first_that_fits(template, _TWO_CALLS, [form, replace(form, takes_parallel_calls=False)])
    form = _first_that_fits(template, _TEXT_AFTER, [form, replace(form, takes_text_after_results=False)])
    return _first_that_fits(template, _THOUGHTS, [form, replace(form, takes_text_beside_thoughts=False)])


def _first_that_fits(template: ChatTemplate, trial: _Trial, forms: list[MessageForm]) -> MessageForm:
    return next((form for form in forms if _fits(template, trial, form)), forms[0])


def _fits(template: ChatTemplate, trial: _Trial, form: MessageForm) -> bool:
    writer = MessageWriter(form, shield=lambda text: text, places={})
    messages = (_message("user", Text(text="qqaskedqq")), *trial.answer)
    offered = writer.offer(_TOOLS)
    try:
        text = template.render(
            writer.messages(messages, offered), tools=offered.native, add_generation_prompt=True
        )
    except BadRequest:
        return False
    return all(mark in text for mark in trial.shows) and not any(mark in text for mark in _NOT_JSON)


def _message(role: Role, *parts: Part) -> Message:
    return Message(role=role, parts=parts)


def _call(number: int) -> ToolUse:
    arguments = {f"qqkey{number}qq": [f"qqvalue{number}qq"]}
    return ToolUse(id=f"qqcall{number}qq-of-any-length", name=f"qqname{number}qq", arguments=arguments)


def _result(number: int) -> ToolResult:
    text = f"qqresult{number}qq"
    return ToolResult(tool_use_id=f"qqcall{number}qq-of-any-length", parts=(Text(text=text),))


def _marks(numbers: Iterable[int]) -> tuple[str, ...]:
    kinds = ("name", "key", "value", "result")
    return tuple(f"qq{kind}{number}qq" for kind in kinds for number in numbers)


_TOOLS = [ToolSpec(name="qqtoolqq", description="qqwhatqq", parameters={"type": "object", "properties": {}})]
_NOT_JSON = ("'qqvalue1qq'", "'qqkey1qq'")
"""An object that was turned to text by Python, not by JSON."""
_ONE_CALL = _Trial(
    answer=(_message("assistant", _call(1)), _message("user", _result(1))),
    shows=_marks([1]),
)
_TWO_CALLS = _Trial(
    answer=(_message("assistant", _call(1), _call(2)), _message("user", _result(1), _result(2))),
    shows=_marks([1, 2]),
)
_TEXT_AFTER = _Trial(
    answer=(_message("assistant", _call(1)), _message("user", _result(1), Text(text="qqsaidqq"))),
    shows=(*_marks([1]), "qqsaidqq"),
)
_THOUGHTS = _Trial(
    answer=(
        _message("assistant", Reasoning(text="qqthoughtqq"), Text(text="qqtextqq"), _call(1)),
        _message("user", _result(1)),
    ),
    shows=_marks([1]),
)
