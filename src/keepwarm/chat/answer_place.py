"""Where in a rendered conversation an assistant's answer lies, learnt from the template by trial.

    … <|im_end|>\\n <|im_start|>assistant\\n  ANSWER  <|im_end|> \\n …
                   ├──── header ──────────┤        └ the first stop token after it
                   start                                end

The header in a history may differ from the one that invites an answer (a template may open a
`<think>` block there), so `start` is found by what the two have in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from keepwarm.chat.call_form import learn_call_form
from keepwarm.chat.control_text import ControlTokens
from keepwarm.chat.template import ChatTemplate, TemplateMessage
from keepwarm.chat.template_messages import MessageForm
from keepwarm.core.errors import BadModel, BadRequest

_ASKED, _ANSWERED, _ASKED_MORE = "qqfirstqq", "qqanswerqq", "qqsecondqq"
_THOUGHT = "qqthoughtqq"
_CALL_ID = "qqcallid9"  # of nine letters and digits: some take no other

Thoughts = Literal["as_shown", "never", "always"]
"""Where a history keeps what an answer began with: where the template shows it; nowhere, since it
cuts thoughts out; everywhere, since it knows none and a thought is text to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlace:
    """One template's habits around an answer. Empty strings where it shows none."""

    invitation: str
    """What `add_generation_prompt` adds."""
    header: str
    """What stands between the last message and an answer in a history."""
    opening: str
    """What every header begins with, where it holds a control token: it cannot be forged."""
    closes: bool
    """Whether a stop token follows an answer in a history."""
    call_header: str = ""
    """What stands between the last message and the name of an answer's first call."""

    def start(self, text: str, since: int, at: int) -> int | None:
        """Where the header of the answer at `at` begins; None where it cannot be told. `at` is the
        place of the answer's text, or of its first call's name where the template shows no text."""
        if self.call_header and text.endswith(self.call_header, since, at):
            return at - len(self.call_header)
        if text.endswith(self.header, since, at):
            return at - len(self.header)
        found = text.rfind(self.opening, since, at) if self.opening else -1
        return found if found >= 0 else None


def learn_form(template: ChatTemplate) -> MessageForm:
    """What the template takes. Raises `BadModel` when it cannot even render one question."""
    for takes_parts in (False, True):
        if _ASKED in (_try(template, [_message("user", _ASKED)], takes_parts) or ""):
            break
    else:
        raise BadModel("the model's chat template does not render a single user message")
    system = _try(template, [_message("system", _ANSWERED), _message("user", _ASKED)], takes_parts) or ""
    form = MessageForm(
        takes_tools=template.mentions_tools,
        takes_system=_ANSWERED in system and _ASKED in system,
        takes_parts=takes_parts,
    )
    return learn_call_form(template, form)


def learn_answer_place(
    template: ChatTemplate, form: MessageForm, control: ControlTokens, stop_tokens: tuple[int, ...]
) -> AnswerPlace:
    """Renders a few small conversations."""
    asked = [_message("user", _ASKED)]
    history = [*asked, _message("assistant", _ANSWERED), _message("user", _ASKED_MORE)]
    before = _try(template, asked, form.takes_parts) or ""
    inviting = _try(template, asked, form.takes_parts, add_generation_prompt=True) or ""
    whole = _try(template, history, form.takes_parts) or ""
    if not whole.startswith(before) or not inviting.startswith(before) or whole.count(_ANSWERED) != 1:
        return AnswerPlace(invitation="", header="", opening="", closes=False)
    header, rest = whole[len(before) :].split(_ANSWERED)
    invitation = inviting[len(before) :]
    opening = _common_beginning(header, invitation)
    return AnswerPlace(
        invitation=invitation,
        header=header,
        opening=opening if any(isinstance(piece, int) for piece in control.cut(opening)) else "",
        closes=any(piece in stop_tokens for piece in control.cut(rest.split(_ASKED_MORE)[0])),
        call_header=_learn_call_header(template, form, asked, before),
    )


def learn_thoughts(template: ChatTemplate, form: MessageForm) -> Thoughts:
    """Tries a thought before a tool's result, where templates keep it longest, and as mere text."""
    call = {
        "id": _CALL_ID,
        "type": "function",
        "function": {"name": "qqtool", "arguments": "{}" if form.arguments_as_text else {}},
    }
    thinking = {**_message("assistant", _ANSWERED), "reasoning_content": _THOUGHT, "thinking": _THOUGHT}
    result = {**_message("tool", _ASKED_MORE), "tool_call_id": _CALL_ID, "name": "qqtool"}
    asked = _message("user", _ASKED)
    for history in (
        [asked, {**thinking, "tool_calls": [call]}, result],
        [asked, thinking, _message("user", _ASKED_MORE)],
    ):
        if _THOUGHT in (_try(template, history, form.takes_parts) or ""):
            return "as_shown"
    spelled = _message("assistant", f"<think>{_THOUGHT}</think>{_ANSWERED}")
    text = _try(template, [asked, spelled, _message("user", _ASKED_MORE)], form.takes_parts) or ""
    return "never" if _ANSWERED in text and _THOUGHT not in text else "always"


def _learn_call_header(
    template: ChatTemplate, form: MessageForm, asked: list[TemplateMessage], before: str
) -> str:
    if not form.takes_tools:
        return ""
    function = {"name": _ANSWERED, "arguments": "{}" if form.arguments_as_text else {}}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    calling = _try(template, [*asked, {**_message("assistant", ""), "tool_calls": [call]}], form.takes_parts)
    if calling is None or not calling.startswith(before) or calling.count(_ANSWERED) != 1:
        return ""
    return calling[len(before) :].split(_ANSWERED)[0]


def _common_beginning(one: str, other: str) -> str:
    length = 0
    while one[length : length + 1] == other[length : length + 1] != "":
        length += 1
    return one[:length]


def _message(role: str, content: str) -> TemplateMessage:
    return {"role": role, "content": content}


def _try(
    template: ChatTemplate,
    messages: list[TemplateMessage],
    takes_parts: bool,
    add_generation_prompt: bool = False,
) -> str | None:
    """The rendering, or None where the template refuses."""
    if takes_parts:
        messages = [
            {**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages
        ]
    try:
        return template.render(messages, tools=None, add_generation_prompt=add_generation_prompt)
    except BadRequest:
        return None
