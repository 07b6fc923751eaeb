"""What was learnt of a model's templates: each once, and once for each way of telling it to think.

A template that takes a switch for thoughts writes another invitation with it, and treats old
thoughts in other ways: to everything here it is another template.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from keepwarm.chat.answer_place import learn_answer_place, learn_form, learn_thoughts
from keepwarm.chat.locality import learn_locality
from keepwarm.chat.prompt_writer import Locality, Program, PromptWriter
from keepwarm.chat.template import PLAIN_TEMPLATE, ChatTemplate
from keepwarm.chat.tokenizer import Tokenizer

_SWITCHES: dict[bool | None, dict[str, object]] = {
    None: {},
    True: {"enable_thinking": True, "thinking": True},
    False: {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
}
"""As Qwen and GLM, DeepSeek, and gpt-oss, which cannot be told not to, call it."""


class Programs:
    """One model's. Threads may share it."""

    def __init__(
        self, tokenizer: Tokenizer, writer: PromptWriter, *, now: datetime | None, lets_grow: bool
    ) -> None:
        """Raises `BadModel`."""
        self._tokenizer = tokenizer
        self._writer = writer
        self._now = now
        self._lets_grow = lets_grow
        self._sources = tokenizer.chat_templates | {"default": tokenizer.chat_template or PLAIN_TEMPLATE}
        self._learnt: dict[tuple[str, bool | None], Program] = {}
        for with_tools in (False, True):
            self.choose(with_tools=with_tools)

    def choose(self, *, with_tools: bool, reasoning: bool | None = None) -> Program:
        """The one for a conversation. The first that is told to think, or not to, takes a moment."""
        kind = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        plain = self._learn_once(kind, None)
        if reasoning is None or not plain.template.takes(_SWITCHES[False]):
            return plain
        return self._learn_once(kind, reasoning)

    def _learn_once(self, kind: str, reasoning: bool | None) -> Program:
        program = self._learnt.get((kind, reasoning))
        if program is None:
            learnt = self._learn(self._sources[kind], reasoning)
            program = self._learnt.setdefault((kind, reasoning), learnt)  # one object, whoever was first
        return program

    def _learn(self, source: str, reasoning: bool | None) -> Program:
        tokenizer = self._tokenizer
        variables: dict[str, object] = {
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "opening": tokenizer.bos_token if tokenizer.adds_bos else "",
        }
        template = ChatTemplate(source, variables=variables | _SWITCHES[reasoning], now=self._now)
        form = learn_form(template)
        program = Program(
            template=template,
            form=form,
            place=learn_answer_place(template, form, tokenizer.control, tokenizer.stop_tokens),
            thoughts=learn_thoughts(template, form),
            locality=Locality(),
        )
        return (
            replace(program, locality=learn_locality(self._writer, program)) if self._lets_grow else program
        )
