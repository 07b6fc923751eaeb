"""Words of a real model: its own tokenizer, template and markup."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from keepwarm.chat.answer import AnswerDecoder
from keepwarm.chat.events import Delta, TextDelta
from keepwarm.chat.forced_form import ForcedForms
from keepwarm.chat.lint_finding import Finding
from keepwarm.chat.messages import Chat
from keepwarm.chat.parsing.answer_markup import AnswerMarkup, markup_of
from keepwarm.chat.parsing.registry import AUTO
from keepwarm.chat.render import DEFAULT_CONVERSATION_BYTES, ChatRenderer, RenderedPrompt
from keepwarm.chat.replay import ReplayMemo
from keepwarm.chat.request import ChatRequest
from keepwarm.chat.template_lint import lint_template
from keepwarm.chat.tokenizer import Tokenizer, load_tokenizer
from keepwarm.core.grammar import Grammar
from keepwarm.core.hashing import BlockHasher
from keepwarm.core.ids import BlockHash, TenantId, TokenIds
from keepwarm.core.sampling import TokenLogprobs

logger = logging.getLogger(__name__)

_NUM_PROMPT_END_TOKENS = 16
"""Enough to see whether the prompt opened a thought."""


def load_model_words(
    model_path: str,
    *,
    tool_format: str = AUTO,
    conversation_memory_bytes: int = DEFAULT_CONVERSATION_BYTES,
    replay: ReplayMemo | None = None,
    now: datetime | None = None,
) -> ModelWords:
    """Templates that show a date show `now`, or that of this start, as long as we live. `replay` may
    hold answers of an earlier process.

    Raises `BadModel`, `BadSetting`.
    """
    tokenizer = load_tokenizer(model_path)
    markup = markup_of(_templates(tokenizer), tool_format=tool_format)
    chosen_by = "the chat template" if tool_format == AUTO else "--tool-format"
    logger.info(
        "tool calls are read as %s (by %s), thoughts between %s and %s",
        *(markup.name, chosen_by, markup.reasoning.open, markup.reasoning.close),
    )
    renderer = ChatRenderer(
        tokenizer,
        now=now or datetime.now(),
        replay=replay,
        conversation_memo_bytes=conversation_memory_bytes,
    )
    logger.info(
        "conversations that grow are %s (at most %d MB of them are known)",
        "read from where they grew" if renderer.remembers_conversations else "rendered whole",
        conversation_memory_bytes // 1_000_000,
    )
    _warn_of_template(model_path, lint_template(tokenizer, renderer, tool_format=tool_format))
    return ModelWords(tokenizer, renderer, markup)


def _warn_of_template(model_path: str, findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.severity == "warning":
            tokens = finding.tokens_a_turn
            logger.warning(
                "the chat template of %s %s (%s): %s See it all: keepwarm doctor --template %s",
                Path(model_path).name,
                f"costs about {tokens:,} tokens a turn" if tokens else "has a fault",
                *(finding.id, finding.what, model_path),
            )


class ModelWords:
    """`Words` over `ChatRenderer`."""

    def __init__(self, tokenizer: Tokenizer, renderer: ChatRenderer, markup: AnswerMarkup) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._markup = markup
        self._forms = ForcedForms(markup, template=_templates(tokenizer), control_id=tokenizer.control_id)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        return tuple(self._tokenizer.stop_tokens)

    @property
    def tool_format(self) -> str:
        return self._markup.name

    def memory_bytes(self) -> Mapping[str, int]:
        return self._renderer.memory_bytes()

    def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        return len(self._renderer.render(tenant, chat).tokens)

    def open_turn(self, request: ChatRequest) -> ModelTurnWords:
        prompt = self._renderer.render(
            request.tenant, request.chat, known=request.known, reasoning=request.reasoning
        )
        prompt_end = self._end_of(prompt)
        grammar = self._forms.form(request, prompt_end=prompt_end)
        decoder = self._decoder(request, prompt_end)
        return ModelTurnWords(self._renderer, request.tenant, prompt, decoder, grammar)

    def _decoder(self, request: ChatRequest, prompt_end: str) -> AnswerDecoder:
        tools = () if request.tool_choice.mode == "none" else request.chat.callable_tools
        markup, tokenizer = self._markup, self._tokenizer
        shown = (tokenizer.control_id(text) for text in markup.control_texts(tools))
        return AnswerDecoder(
            tokenizer,
            parser=markup.parser(tools, prompt_end=prompt_end, new_call_id=_new_call_id),
            shown=frozenset(token for token in shown if token is not None),
            stop=request.stop,
            report_logprobs=request.sampling.num_logprobs is not None,
        )

    def _end_of(self, prompt: RenderedPrompt) -> str:
        tokens = prompt.tokens[-_NUM_PROMPT_END_TOKENS:].tolist()
        return b"".join(map(self._tokenizer.token_bytes, tokens)).decode("utf-8", "replace")


class ModelTurnWords:
    """`TurnWords` over `AnswerDecoder`."""

    def __init__(
        self,
        renderer: ChatRenderer,
        tenant: TenantId,
        prompt: RenderedPrompt,
        decoder: AnswerDecoder,
        grammar: Grammar | None,
    ) -> None:
        self.grammar = grammar
        self._renderer = renderer
        self._tenant = tenant
        self._prompt = prompt
        self._decoder = decoder
        self._is_finished = False

    @property
    def prompt(self) -> TokenIds:
        return self._prompt.tokens

    @property
    def is_known(self) -> bool:
        return self._prompt.known is not None

    def block_names(self, hasher: BlockHasher, root: BlockHash) -> bytes:
        return self._prompt.block_names(hasher, root)

    @property
    def stop_string(self) -> str | None:
        return self._decoder.stop_string

    @property
    def num_output_tokens(self) -> int:
        return self._decoder.num_tokens

    @property
    def num_calls(self) -> int:
        return self._decoder.num_calls

    @property
    def num_malformed(self) -> int:
        return self._decoder.num_malformed

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Sequence[Delta]:
        return self._decoder.add(tokens, logprobs)

    def finish(self) -> Sequence[Delta]:
        self._is_finished = True
        return self._decoder.flush()

    def remember(self) -> None:
        parts = self._decoder.parts()
        if not parts:
            return
        if not self._is_finished and any(map(_says_something, self._decoder.flush())):
            return  # some tokens say more than what was sent: the ids would not stand for it
        tokens = self._decoder.replay_tokens()
        if tokens:
            self._renderer.remember(self._tenant, self._prompt, parts, tokens)


def _templates(tokenizer: Tokenizer) -> str:
    """All that the checkpoint has, which may be one for chats and one for tools."""
    return "\n".join(tokenizer.chat_templates.values())


def _says_something(delta: Delta) -> bool:
    return not isinstance(delta, TextDelta) or bool(delta.text)


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
