from __future__ import annotations

import contextlib
from pathlib import Path

import gguf
import pytest

from keepwarm.chat.gguf_metadata import read_gguf_metadata
from keepwarm.core.errors import BadModel


def _write(path: Path) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    for key, add, value in (
        ("u8", writer.add_uint8, 200),
        ("i8", writer.add_int8, -3),
        ("u16", writer.add_uint16, 60000),
        ("i16", writer.add_int16, -300),
        ("u32", writer.add_uint32, 4_000_000_000),
        ("i32", writer.add_int32, -70000),
        ("u64", writer.add_uint64, 2**63),
        ("i64", writer.add_int64, -(2**62)),
        ("f32", writer.add_float32, 0.5),
        ("f64", writer.add_float64, 0.1),
        ("yes", writer.add_bool, True),
        ("text", writer.add_string, "naïve 🙂"),
        ("strings", writer.add_array, ["a", "", "你好"]),
        ("ints", writer.add_array, [1, -2, 3]),
        ("floats", writer.add_array, [0.5, -1.0]),
    ):
        add(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path.read_bytes()


def test_every_value_type_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    _write(path)
    assert read_gguf_metadata(path) == {
        "general.architecture": "llama",
        "u8": 200,
        "i8": -3,
        "u16": 60000,
        "i16": -300,
        "u32": 4_000_000_000,
        "i32": -70000,
        "u64": 2**63,
        "i64": -(2**62),
        "f32": 0.5,
        "f64": 0.1,
        "yes": True,
        "text": "naïve 🙂",
        "strings": ["a", "", "你好"],
        "ints": [1, -2, 3],
        "floats": [0.5, -1.0],
    }


def test_a_file_cut_anywhere_is_a_bad_model(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    whole = _write(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(BadModel, match=r"a\.gguf"):
            read_gguf_metadata(path)


@pytest.mark.parametrize("at", [0, 4, 16, 30, 60, 200, 300])
def test_nonsense_in_a_file_gives_other_values_or_a_bad_model_and_nothing_else(
    tmp_path: Path, at: int
) -> None:
    path = tmp_path / "a.gguf"
    whole = bytearray(_write(path))
    whole[at : at + 8] = b"\xff" * 8
    path.write_bytes(whole)
    with contextlib.suppress(BadModel):
        read_gguf_metadata(path)


def test_what_is_no_gguf_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(BadModel, match="does not begin with GGUF"):
        read_gguf_metadata(path)
    with pytest.raises(BadModel, match="cannot be read"):
        read_gguf_metadata(tmp_path / "missing.gguf")
