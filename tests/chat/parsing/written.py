"""What a model of a family would write to say and call this: its template's own rendering, cut out."""

from __future__ import annotations

from functools import cache
from typing import Any

from keepwarm.chat.answer_place import learn_form
from keepwarm.chat.dsml_template import DEEPSEEK_V4_TEMPLATE, DEEPSEEK_V32_TEMPLATE
from keepwarm.chat.messages import Message, Text, ToolUse
from keepwarm.chat.template import ChatTemplate
from keepwarm.chat.template_messages import MessageForm, MessageWriter
from tests.chat.facsimiles import FACSIMILES
from tests.chat.families import message

EOS = "</s>"
TEMPLATES = {**FACSIMILES, "deepseek-v3.2": DEEPSEEK_V32_TEMPLATE, "deepseek-v4": DEEPSEEK_V4_TEMPLATE}
TEMPLATES.pop("gemma-3")  # writes no calls
TEMPLATES.pop("llama-3")  # its parser is tested where it is; the end of its turn is another's mark
ENDS_OF_TURN = (EOS, "<|im_end|>", "<end_of_turn>", "<turn|>", "<｜end▁of▁sentence｜>")


@cache
def learnt(name: str) -> tuple[ChatTemplate, MessageForm]:
    template = ChatTemplate(TEMPLATES[name], variables={"bos_token": "<s>", "eos_token": EOS})
    return template, learn_form(template)


def answer_of(name: str, said: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """What stands in the template's text between the invitation to answer and the end of the turn."""
    template, form = learnt(name)
    uses = [
        ToolUse(id=f"call{number}", name=call, arguments=arguments)
        for number, (call, arguments) in enumerate(calls)
    ]
    question = message("user", "go")

    def render(*messages: Message, invite: bool) -> str:
        writer = MessageWriter(form, shield=lambda text: text, places={})
        return template.render(
            writer.messages(messages, writer.offer([])), tools=None, add_generation_prompt=invite
        )

    asked = render(question, invite=True).removesuffix("<think>\n")
    text = render(question, Message(role="assistant", parts=(Text(text=said), *uses)), invite=False)
    assert text.startswith(asked)
    text = text[len(asked) :].removeprefix("\n<think></think>\n")
    return text[
        : min((text.rfind(end) for end in ENDS_OF_TURN if text.rstrip().endswith(end)), default=len(text))
    ]
