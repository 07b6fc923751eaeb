"""`--model`: tiny models with random weights behind the whole stack, and folders that cannot be served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chat.tiny_tokenizers import CHATML, byte_level_backend, write_folder
from tests.cli.command import run
from tests.e2e.served import Served, serve

pytestmark = pytest.mark.engine

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
}

HYBRID = {
    "head_dim": 32,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
"""Most layers keep only a window, in blocks of their own."""


def write_model(folder: Path, model_type: str, **changes: Any) -> Path:
    """A complete folder: config, safetensors, tokenizer, chat template."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    backend = byte_level_backend()
    write_folder(folder, backend, chat_template=CHATML, eos_token="<|im_end|>")
    end = backend.token_to_id("<|im_end|>")
    config = AutoConfig.for_model(
        model_type, **SHAPE, vocab_size=backend.get_vocab_size(), eos_token_id=end, **changes
    )
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def two_turns(served: Served) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A first turn, the second with the cache, the second without it."""
    messages: list[dict[str, str]] = [{"role": "user", "content": "hello there fox " * 12}]

    def ask(**headers: str) -> dict[str, Any]:
        body = {"model": "default", "max_tokens": 12, "temperature": 0, "messages": messages}
        with served.client() as client:
            response = client.post("/v1/messages", json=body, headers=headers)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    first = ask()
    answer = "".join(block["text"] for block in first["content"])
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "and then?"}]
    return first, ask(), ask(**{"x-keepwarm-cache": "bypass"})


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [("qwen3", {"head_dim": 32}), ("gemma3_text", HYBRID)],
)
def test_a_folder_is_served_warm_and_exact(tmp_path: Path, model_type: str, changes: dict[str, Any]) -> None:
    folder = write_model(tmp_path / "model", model_type, **changes)
    with serve(tmp_path, "--model", str(folder), "--device-cache-gb", "0.2") as served:
        assert served.model == "model"
        assert served.max_context_tokens == 1024
        first, warm, cold = two_turns(served)
    past = first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    assert warm["usage"]["cache_read_input_tokens"] >= past // 16 * 16 - 16
    assert cold["usage"]["cache_read_input_tokens"] == 0
    assert warm["content"] == cold["content"]


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (
            lambda folder: (folder / "config.json").write_text(json.dumps({"model_type": "mamba"})),
            "mamba",
        ),
    ],
    ids=["weights", "tokenizer", "config", "architecture"],
)
def test_what_is_missing_is_named_before_anything_is_loaded(
    tmp_path: Path, break_it: Any, complaint: str
) -> None:
    folder = write_model(tmp_path / "model", "llama")
    break_it(folder)
    refused = run("serve", "--port", "0", "--data-dir", str(tmp_path / "data"), "--model", str(folder))
    assert refused.returncode == 2
    assert complaint in refused.stderr
    assert "Traceback" not in refused.stderr


def test_too_little_memory_says_how_much_is_needed_and_which_setting_to_lower(tmp_path: Path) -> None:
    options = ("--port", "0", "--data-dir", str(tmp_path), "--device-cache-gb", "0.001")
    refused = run("serve", *options)
    assert refused.returncode == 2
    assert "--max-model-len" in refused.stderr
    assert "--device-cache-gb" in refused.stderr
    assert "GB" in refused.stderr
