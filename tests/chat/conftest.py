"""Tiny tokenizers, made once a run."""

from __future__ import annotations

import pytest

from keepwarm.chat.tokenizer import Tokenizer, load_tokenizer
from keepwarm.cli.embedded_model import find_embedded_model
from keepwarm.core.errors import BadModel
from tests.chat.tiny_tokenizers import chatml_tokenizer, pieces_tokenizer


@pytest.fixture(scope="session")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Byte-level BPE with ChatML."""
    return chatml_tokenizer(tmp_path_factory.mktemp("chatml"))


@pytest.fixture(scope="session")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """SentencePiece-like BPE with `[INST]`."""
    return pieces_tokenizer(tmp_path_factory.mktemp("pieces"))


@pytest.fixture(scope="session")
def embedded() -> Tokenizer:
    """The embedded model's, from its GGUF file."""
    try:
        return load_tokenizer(str(find_embedded_model()))
    except BadModel as error:
        pytest.skip(str(error))


@pytest.fixture(params=["chatml", "pieces"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Each kind in turn."""
    chosen: Tokenizer = request.getfixturevalue(request.param)
    return chosen
