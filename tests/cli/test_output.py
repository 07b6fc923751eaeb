"""JSON for machines is whole or absent, and its owner's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepwarm.cli.output import console_beside, write_json


def test_a_file_is_written_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    target = tmp_path / "ready.json"
    target.write_text("what stood there before")

    write_json(b"{}\n", str(target))

    assert target.read_bytes() == b"{}\n"
    assert target.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_a_dash_is_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_json(b"{}\n", "-")

    assert capfdbinary.readouterr().out == b"{}\n"


def test_words_for_people_leave_standard_output_to_the_json() -> None:
    assert console_beside("-").stderr
    assert not console_beside("report.json").stderr
    assert not console_beside(None).stderr
