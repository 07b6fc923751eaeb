"""Token ids into text as they come: whole characters only, each token looked at once."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from keepwarm.chat.tokenizer import Tokenizer


class Detokenizer:
    """One answer's text. The pieces joined equal `Tokenizer.decode` of all its tokens, but for
    those that are shown."""

    def __init__(self, tokenizer: Tokenizer, *, shown: Collection[int] = ()) -> None:
        """`shown`: special tokens whose spelling is text even so."""
        self._tokenizer = tokenizer
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strips_space = tokenizer.strips_first_space

    def add(self, tokens: Iterable[int]) -> str:
        """The text that is whole now; bytes of a character that is not yet are held back."""
        tokenizer, shown = self._tokenizer, self._shown
        added = b"".join(
            [
                tokenizer.token_bytes(token)
                for token in tokens
                if token in shown or not tokenizer.is_special(token)
            ]
        )
        if self._strips_space and added:
            self._strips_space = False
            added = added.removeprefix(b" ")
        return self._decoder.decode(added)

    def flush(self) -> str:
        """What is left: U+FFFD where a character was never finished."""
        return self._decoder.decode(b"", final=True)

    @property
    def holds_bytes(self) -> bool:
        """Whether a character has begun and is not finished."""
        return bool(self._decoder.getstate()[0])
