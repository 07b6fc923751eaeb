from __future__ import annotations

from pathlib import Path

import pytest

from keepwarm.backend.disk_records import load_records, save_records

RECORDS = [(b"one", b"1"), (b"two", b"2" * 1000), (b"", b"")]


def test_what_was_saved_is_loaded_in_order(tmp_path: Path) -> None:
    assert list(load_records(tmp_path)) == []
    save_records(tmp_path, RECORDS)
    assert list(load_records(tmp_path)) == RECORDS
    save_records(tmp_path, RECORDS[:1])
    assert list(load_records(tmp_path)) == RECORDS[:1]
    assert [file.name for file in tmp_path.iterdir()] == ["records"]
    assert (tmp_path / "records").stat().st_mode & 0o777 == 0o600


def test_no_damage_is_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_records(tmp_path, RECORDS)
    raw = (tmp_path / "records").read_bytes()
    for offset in [*range(40), *range(40, len(raw), 50), len(raw) - 1]:
        damaged = bytearray(raw)
        damaged[offset] ^= 1
        (tmp_path / "records").write_bytes(damaged)
        assert list(load_records(tmp_path)) == []
    for length in (0, 5, 28, len(raw) - 1):
        (tmp_path / "records").write_bytes(raw[:length])
        assert list(load_records(tmp_path)) == []
    assert "records is not used: it is damaged or of another version" in caplog.text


def test_a_folder_that_is_gone_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_records(tmp_path / "gone", RECORDS)
    assert "are not kept in" in caplog.text
