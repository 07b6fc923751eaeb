"""JSON for machines is whole or absent, and its owner's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepwarm.cli.output import check_json_target, console_beside, write_json
from keepwarm.core.errors import BadSetting
from tests.cli.command import run


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


def test_a_target_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"--json .*/none/report\.json: there is no folder .*/none"):
        check_json_target(str(tmp_path / "none" / "report.json"))
    with pytest.raises(BadSetting, match=r"--json .*: is a folder"):
        check_json_target(str(tmp_path))
    for target in (None, "-", str(tmp_path / "report.json")):
        check_json_target(target)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["serve", "demo", "doctor"])
def test_commands_look_at_the_target_before_they_start(tmp_path: Path, command: str) -> None:
    refused = run(command, "--json", str(tmp_path / "none" / "report.json"))

    assert refused.returncode == 2
    assert "there is no folder" in refused.stderr
    assert "starting" not in refused.stdout
