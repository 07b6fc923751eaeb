"""`keepwarm keys` from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepwarm.control.keys import FileKeys
from tests.cli.command import run


async def test_a_key_belongs_to_the_tenant_it_was_made_for(tmp_path: Path) -> None:
    made = run("keys", "create", "--label", "build", "--tenant", "team-b", "--data-dir", str(tmp_path))

    principal = await FileKeys(tmp_path / "keys.json").verify(made.stdout.strip())
    assert principal is not None
    assert principal.tenant == "team-b"
    assert "(build) of tenant team-b, shown only now" in made.stderr
    assert "team-b" in run("keys", "list", "--data-dir", str(tmp_path)).stdout


@pytest.mark.parametrize("tenant", ["", "a b", "-x", "ä", "x" * 64])
def test_a_tenant_that_is_no_name_is_refused(tmp_path: Path, tenant: str) -> None:
    refused = run("keys", "create", "--tenant", tenant, "--data-dir", str(tmp_path))

    assert refused.returncode == 2
    assert f"--tenant {tenant!r}: must be 1 to 63 letters" in refused.stderr
    assert not (tmp_path / "keys.json").exists()


@pytest.mark.parametrize("arguments", [("list",), ("revoke", "key_0")])
def test_looking_into_a_folder_that_is_not_there_says_so_and_makes_none(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    missing = tmp_path / "misspelt"

    refused = run("keys", *arguments, "--data-dir", str(missing))

    assert refused.returncode == 2
    assert f"--data-dir {missing}: no such folder" in refused.stderr
    assert not missing.exists()


def test_ids_are_whole_however_narrow_the_terminal(tmp_path: Path) -> None:
    _, record = FileKeys(tmp_path / "keys.json").create("somebody with a long label")
    FileKeys(tmp_path / "keys.json").revoke(record.id)

    listed = run("keys", "list", "--data-dir", str(tmp_path), more={"COLUMNS": "60"})

    assert record.id in listed.stdout


@pytest.mark.parametrize("label", ["", " ", "a\nb"])
def test_a_label_that_shows_nothing_is_refused(tmp_path: Path, label: str) -> None:
    refused = run("keys", "create", "--label", label, "--data-dir", str(tmp_path))
    assert refused.returncode == 2
    assert f"--label {label!r}: must say whose key it is" in refused.stderr
