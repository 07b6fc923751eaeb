"""A GGUF file becomes the model it was made from; incomplete weights are never random numbers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from keepwarm.core.errors import BadModel
from keepwarm.engine.checkpoint import inspect_checkpoint
from tests.engine.gguf_writing import write_gguf

pytest.importorskip("torch")

import torch

from keepwarm.engine.model_loading import load_model
from tests.engine.tiny_models import VOCAB_SIZE

pytestmark = pytest.mark.engine
TinyModel = Callable[[str], Path]


def logits(path: Path) -> torch.Tensor:
    model = load_model(inspect_checkpoint(str(path)), torch.float32, attention="sdpa")
    ids = torch.arange(3, 60).remainder(VOCAB_SIZE).unsqueeze(0)
    with torch.inference_mode():
        answer: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return answer


@pytest.mark.parametrize(
    ("family", "name"),
    [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3"), ("gemma3", "gemma3_as_gguf")],
)
def test_a_gguf_file_computes_what_its_folder_does(
    family: str, name: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    folder = tiny_model(name)
    file = write_gguf(family, folder, tmp_path / "model.gguf")
    torch.testing.assert_close(logits(file), logits(folder), atol=1e-4, rtol=1e-4)


def test_a_missing_weight_is_named(tiny_model: TinyModel, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = copytree(tiny_model("llama"), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel, match=r"lacks 1 weights: model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(inspect_checkpoint(str(folder)), torch.float32)


def test_a_weight_of_the_wrong_shape_is_named(tiny_model: TinyModel, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = copytree(tiny_model("llama"), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(5)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel, match=r"model\.norm\.weight|cannot be loaded"):
        load_model(inspect_checkpoint(str(folder)), torch.float32)


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_loading_asks_nobody_over_the_network(
    kind: str, tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    folder = tiny_model("llama")
    path = folder if kind == "folder" else write_gguf("llama", folder, tmp_path / "model.gguf")
    load_model(inspect_checkpoint(str(path)), torch.float32)
