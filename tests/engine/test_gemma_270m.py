"""A real model whose layers mostly look back 512 tokens, through our own reading of its GGUF file."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepwarm.engine.settings import EngineSettings
from tests.engine.driver import Driver, Turn

pytest.importorskip("torch")

import torch

from keepwarm.chat.tokenizer import Tokenizer, load_tokenizer
from keepwarm.engine.checkpoint import inspect_checkpoint
from keepwarm.engine.model_loading import load_model
from keepwarm.engine.torch_executor import build_torch_executor
from tests.engine.tiny_models import assert_same_tokens

pytestmark = [pytest.mark.engine, pytest.mark.slow]

WINDOW_TOKENS = 512
BEGIN = 2


@pytest.fixture(scope="module")
def tokenizer(gemma_270m_path: str) -> Iterator[Tokenizer]:
    yield load_tokenizer(gemma_270m_path)
    gc.collect()


@pytest.fixture(scope="module")
def long_prompt(tokenizer: Tokenizer) -> list[int]:
    """English prose, 1,300 tokens."""
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    return [BEGIN, *tokenizer.encode(text).tolist()][:1300]


def test_its_tokenizer_is_read_from_the_file(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("The capital of France is").tolist() == [818, 5279, 529, 7001, 563]
    assert (tokenizer.vocab_size, tokenizer.max_position, tokenizer.adds_bos) == (262_144, 32_768, True)
    text = "def f(x: int) -> int:\n    return x * 2  # 1,234.5\n\n\n\tend naïve 你好 🙂"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_it_says_what_it_is(gemma_270m_path: str) -> None:
    spec = inspect_checkpoint(gemma_270m_path)
    assert (spec.architecture, spec.num_layers, spec.max_position) == ("gemma3_text", 18, 32_768)
    assert (spec.vocab_size, spec.eos_token_ids) == (262_144, (1,))


def test_greedy_tokens_equal_transformers_within_and_beyond_the_window(
    gemma_270m_path: str, tokenizer: Tokenizer, long_prompt: list[int]
) -> None:
    plain = load_model(inspect_checkpoint(gemma_270m_path), torch.float32, attention="sdpa")
    executor, _ = build_torch_executor(
        EngineSettings(
            model_path=gemma_270m_path,
            block_size=16,
            max_num_seqs=4,
            max_model_len=2048,
            device_cache_gb=0.2,
        )
    )
    turns = [
        Turn(prompt=[BEGIN, *tokenizer.encode("The capital of France is").tolist()], num_tokens=16),
        Turn(prompt=long_prompt[: WINDOW_TOKENS - 4], num_tokens=8, chunk_tokens=200),
        Turn(prompt=long_prompt, num_tokens=8, chunk_tokens=600),
    ]
    outputs = Driver(executor, shuffle_seed=1).run(turns)
    # What shows that weights and rotary bases were understood: the other side shares our reading of both.
    assert "largest city in France" in tokenizer.decode(outputs[0])
    for turn, output in zip(turns, outputs, strict=True):
        assert_same_tokens(plain, turn.prompt, output)
    del plain, executor
    gc.collect()
