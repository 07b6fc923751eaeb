"""What is refused before anything is loaded, and by which words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from keepwarm.core.errors import BadModel
from keepwarm.engine.checkpoint import inspect_checkpoint
from tests.engine.gguf_writing import write_gguf

pytest.importorskip("torch")


from tests.engine.tiny_models import CONTEXT_TOKENS, VOCAB_SIZE, write_model

pytestmark = pytest.mark.engine
TinyModel = Callable[[str], Path]


@pytest.fixture
def folder(tiny_model: TinyModel, tmp_path: Path) -> Path:
    """A copy of a tiny Llama that a test may spoil."""
    return copytree(tiny_model("llama"), tmp_path / "model")


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_folder_is_described_without_reading_its_weights(folder: Path) -> None:
    spec = inspect_checkpoint(str(folder))
    assert (spec.kind, spec.architecture, spec.num_layers) == ("folder", "llama", 3)
    assert (spec.max_position, spec.vocab_size, spec.eos_token_ids) == (CONTEXT_TOKENS, VOCAB_SIZE, (2,))
    assert 0 < spec.weights_bytes <= (folder / "model.safetensors").stat().st_size


def test_the_embedded_model_is_described(embedded_model_path: str) -> None:
    spec = inspect_checkpoint(embedded_model_path)
    assert (spec.kind, spec.architecture, spec.num_layers) == ("gguf", "llama", 30)
    assert (spec.max_position, spec.vocab_size, spec.eos_token_ids) == (8192, 49152, (2,))


def test_inspecting_imports_no_torch(embedded_model_path: str) -> None:
    code = (
        "import sys; from keepwarm.engine.checkpoint import inspect_checkpoint; "
        "inspect_checkpoint(sys.argv[1]); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, embedded_model_path], timeout=60, check=False)
    assert done.returncode == 0


def test_end_tokens_come_from_the_generation_config_where_there_is_one(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert inspect_checkpoint(str(folder)).eos_token_ids == (2, 7)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="nowhere does not exist"):
        inspect_checkpoint(str(tmp_path / "nowhere"))


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(BadModel, match="neither a folder nor a GGUF file"):
        inspect_checkpoint(str(tmp_path / "model.bin"))


def test_a_folder_without_a_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(BadModel, match=r"has no config\.json"):
        inspect_checkpoint(str(folder))


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_config_that_is_no_json_object(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(BadModel, match=r"config\.json is not"):
        inspect_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba2"}, "architecture mamba2 is not supported; supported are arcee, cohere,"),
        ({"model_type": None}, "has no model_type"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised weights"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type dynamic"),
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "rope type longrope"),
    ],
)
def test_what_we_cannot_compute_is_refused_by_name(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    change_config(folder, **changes)
    with pytest.raises(BadModel, match=message):
        inspect_checkpoint(str(folder))


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadModel, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        inspect_checkpoint(str(folder))


def test_missing_shards_are_named(tmp_path: Path) -> None:
    folder = write_model("llama", tmp_path / "sharded", max_shard_size="100KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    inspect_checkpoint(str(folder))
    for shard in shards[1:]:
        shard.unlink()
    with pytest.raises(
        BadModel, match=f"lacks {len(shards) - 1} of {len(shards)} weight files: model-00002-of"
    ):
        inspect_checkpoint(str(folder))


def test_a_weight_file_that_was_cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadModel, match=r"model\.safetensors is incomplete: .* bytes are there"):
        inspect_checkpoint(str(folder))


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"])
def test_a_weight_file_that_is_something_else(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(BadModel, match="no complete safetensors file"):
        inspect_checkpoint(str(folder))


def test_a_gguf_file_that_was_cut_off(tiny_model: TinyModel, tmp_path: Path) -> None:
    file = write_gguf("llama", tiny_model("llama"), tmp_path / "model.gguf")
    whole = file.read_bytes()
    file.write_bytes(whole[:-50])
    with pytest.raises(BadModel, match=r"is incomplete: .* bytes are there"):
        inspect_checkpoint(str(file))
    for length in (4, 20, 200, 900):
        file.write_bytes(whole[:length])
        with pytest.raises(BadModel, match="is no whole GGUF file"):
            inspect_checkpoint(str(file))


def test_a_gguf_of_an_unknown_architecture(tiny_model: TinyModel, tmp_path: Path) -> None:
    file = write_gguf("mamba", tiny_model("llama"), tmp_path / "model.gguf")
    with pytest.raises(BadModel, match="architecture mamba is not supported; supported are gemma3, llama,"):
        inspect_checkpoint(str(file))


def test_a_gguf_that_lacks_tensors(tiny_model: TinyModel, tmp_path: Path) -> None:
    file = write_gguf(
        "llama", tiny_model("llama"), tmp_path / "model.gguf", leave_out=("blk.1.ffn_up.weight",)
    )
    with pytest.raises(BadModel, match=r"lacks 1 tensors: blk\.1\.ffn_up\.weight"):
        inspect_checkpoint(str(file))
