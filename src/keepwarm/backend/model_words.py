"""Words of a real model: its own tokenizer and template."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from keepwarm.chat.answer import AnswerDecoder
from keepwarm.chat.events import Delta
from keepwarm.chat.messages import Chat, Text
from keepwarm.chat.render import ChatRenderer, RenderedPrompt
from keepwarm.chat.request import ChatRequest
from keepwarm.chat.tokenizer import Tokenizer, load_tokenizer
from keepwarm.core.hashing import BlockHasher
from keepwarm.core.ids import BlockHash, TenantId, TokenIds
from keepwarm.core.sampling import TokenLogprobs


def load_model_words(model_path: str) -> ModelWords:
    """Raises `BadModel`. Templates that show a date show that of this start, as long as we live."""
    tokenizer = load_tokenizer(model_path)
    return ModelWords(tokenizer, ChatRenderer(tokenizer, now=datetime.now()))


class ModelWords:
    """`Words` over `ChatRenderer`."""

    def __init__(self, tokenizer: Tokenizer, renderer: ChatRenderer) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        return tuple(self._tokenizer.stop_tokens)

    def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        return len(self._renderer.render(tenant, chat).tokens)

    def open_turn(self, request: ChatRequest) -> ModelTurnWords:
        decoder = AnswerDecoder(
            self._tokenizer,
            stop=request.stop,
            report_logprobs=request.sampling.num_logprobs is not None,
        )
        prompt = self._renderer.render(request.tenant, request.chat, known=request.known)
        return ModelTurnWords(self._renderer, request.tenant, prompt, decoder)


class ModelTurnWords:
    """`TurnWords` over `AnswerDecoder`."""

    def __init__(
        self, renderer: ChatRenderer, tenant: TenantId, prompt: RenderedPrompt, decoder: AnswerDecoder
    ) -> None:
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

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Sequence[Delta]:
        return self._decoder.add(tokens, logprobs)

    def finish(self) -> Sequence[Delta]:
        self._is_finished = True
        return self._decoder.flush()

    def remember(self) -> None:
        sent = self._decoder.text
        if not sent:
            return
        if not self._is_finished and any(delta.text for delta in self._decoder.flush()):
            return  # some tokens say more than what was sent: the ids would not stand for it
        tokens = self._decoder.replay_tokens()
        self._renderer.remember(self._tenant, self._prompt, (Text(text=sent),), tokens)
