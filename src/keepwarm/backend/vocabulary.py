"""What a rank must know of a model's tokenizer to enforce a grammar."""

from __future__ import annotations

from keepwarm.chat.tokenizer import Tokenizer, load_tokenizer
from keepwarm.core.grammar import Vocabulary


def load_vocabulary(model_path: str) -> Vocabulary:
    """From the model's own files, as the front reads them. Raises `BadModel`."""
    return vocabulary_of(load_tokenizer(model_path))


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    tokens = range(tokenizer.vocab_size)
    return Vocabulary(
        token_bytes=[tokenizer.token_bytes(token) for token in tokens],
        control_tokens=frozenset(token for token in tokens if tokenizer.is_special(token)),
        stop_tokens=frozenset(tokenizer.stop_tokens),
    )
