"""The header of a GGUF file equals what the `gguf` package wrote, and a damaged one is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from keepwarm.core.errors import BadModel
from keepwarm.core.gguf import GgufHeader, parse_gguf_header

gguf = pytest.importorskip("gguf", reason="only a machine that serves models has it")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_float32("some.float", 0.5)
    writer.add_bool("some.flag", True)
    writer.add_int64("some.negative", -7)
    writer.add_array("some.words", ["", "größe", "<|im_start|>"])
    writer.add_array("some.numbers", [1, 2, 3])
    writer.add_array("some.floats", [0.25, -1.0])
    writer.add_tensor("one.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two.weight", np.ones((5,), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path: Path) -> GgufHeader:
    return parse_gguf_header(path, path.read_bytes())


def test_metadata_of_every_kind_is_read(file: Path) -> None:
    metadata = read(file).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.context_length"] == 512
    assert metadata["some.float"] == 0.5
    assert metadata["some.flag"] is True
    assert metadata["some.negative"] == -7
    assert metadata["some.words"] == ["", "größe", "<|im_start|>"]
    assert metadata["some.numbers"] == [1, 2, 3]
    assert metadata["some.floats"] == [0.25, -1.0]


def test_tensors_lie_where_the_header_says(file: Path) -> None:
    tensors = read(file).tensors
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "one.weight": (2, 3),
        "two.weight": (5,),
    }
    one = tensors["one.weight"]
    values = np.frombuffer(file.read_bytes(), np.float32, count=one.num_values, offset=one.offset_bytes)
    assert values.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_header_cut_anywhere_is_refused_by_name(file: Path) -> None:
    whole = file.read_bytes()
    end = min(tensor.offset_bytes for tensor in read(file).tensors.values())
    for length in range(0, end - 64, 7):
        with pytest.raises(BadModel, match=r"tiny\.gguf is no whole GGUF file"):
            parse_gguf_header(file, whole[:length])


def test_another_format_and_version_are_named() -> None:
    with pytest.raises(BadModel, match="does not start with 'GGUF'"):
        parse_gguf_header(Path("model.bin"), b"PK\x03\x04 and so on")
    with pytest.raises(BadModel, match="has version 9; versions 2 and 3"):
        parse_gguf_header(Path("model.gguf"), b"GGUF" + (9).to_bytes(4, "little") + bytes(16))
