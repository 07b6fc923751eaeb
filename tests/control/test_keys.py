"""Keys in a file: hashed, private, and right beside a running server."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from keepwarm.control.keys import FileKeys
from keepwarm.core.errors import BadSetting, NotFound


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "keys.json"


def remove(path: Path) -> None:
    path.unlink()


def overwrite(path: Path, content: str) -> None:
    path.write_text(content)


async def test_a_created_key_lets_its_owner_in(path: Path) -> None:
    keys = FileKeys(path)
    secret, record = keys.create("laptop")
    principal = await keys.verify(secret)
    assert principal is not None
    assert (principal.tenant, principal.key_id) == ("default", record.id)
    assert record.label == "laptop"


@pytest.mark.parametrize("secret", ["", "ik_live_", "ik_live_" + "x" * 43, "\ud83d", "é" * 10_000])
async def test_anything_else_lets_nobody_in(path: Path, secret: str) -> None:
    keys = FileKeys(path)
    keys.create("laptop")
    assert await keys.verify(secret) is None


def test_secrets_cannot_be_guessed_and_are_never_alike(path: Path) -> None:
    keys = FileKeys(path)
    secrets = {keys.create("x")[0] for _ in range(20)}
    assert len(secrets) == 20
    assert all(re.fullmatch(r"ik_live_[A-Za-z0-9]{43}", secret) for secret in secrets)


def test_the_file_holds_no_secret_and_only_its_owner_reads_it(path: Path) -> None:
    secret, record = FileKeys(path).create("laptop")
    assert secret not in path.read_text()
    assert secret.removeprefix("ik_live_") not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["keys"][0]["id"] == record.id
    assert [each.name for each in path.parent.iterdir() if each.name.startswith(".")] == []


async def test_a_key_made_by_another_process_is_taken_at_once(path: Path) -> None:
    server, command = FileKeys(path), FileKeys(path)
    secret, record = command.create("later")
    assert await server.verify(secret) is not None
    command.revoke(record.id)
    assert await server.verify(secret) is None


async def test_revoking_one_key_leaves_the_others(path: Path) -> None:
    keys = FileKeys(path)
    (kept, _), (dropped, record) = keys.create("kept"), keys.create("dropped")
    revoked = keys.revoke(record.id)
    assert revoked.revoked_at is not None
    assert keys.revoke(record.id) == revoked
    assert await keys.verify(kept) is not None
    assert await keys.verify(dropped) is None
    assert [(each.label, each.revoked_at is None) for each in keys.list()] == [
        ("kept", True),
        ("dropped", False),
    ]


def test_an_unknown_key_cannot_be_revoked(path: Path) -> None:
    with pytest.raises(NotFound, match="key_nobody"):
        FileKeys(path).revoke("key_nobody")


async def test_a_removed_file_lets_nobody_in(path: Path) -> None:
    keys = FileKeys(path)
    secret, _ = keys.create("laptop")
    assert await keys.verify(secret) is not None
    remove(path)
    assert await keys.verify(secret) is None
    assert keys.list() == ()


@pytest.mark.parametrize("content", ["", "{", '{"version": 1}', '{"version": 1, "keys": [{"label": "x"}]}'])
async def test_a_broken_file_is_named_at_start_and_lets_nobody_in_later(
    path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = FileKeys(path)
    secret, _ = keys.create("laptop")
    assert await keys.verify(secret) is not None
    overwrite(path, content)
    assert await keys.verify(secret) is None
    assert "nobody is let in" in caplog.text
    with pytest.raises(BadSetting, match=re.escape(str(path))):
        FileKeys(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="file"):
        FileKeys(tmp_path / "file" / "keys.json").create("x")
