from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keepwarm.backend.cache_key import load_or_create_key, model_identity
from keepwarm.core.errors import BadSetting


def test_the_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    key = load_or_create_key(tmp_path / "data")
    assert len(key) == 32
    assert load_or_create_key(tmp_path / "data") == key
    assert (tmp_path / "data" / "cache.key").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "data") == ["cache.key"]


def test_all_who_start_at_once_get_the_same_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(load_or_create_key, [tmp_path] * 32))
    assert len(keys) == 1


def test_a_damaged_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache.key").write_bytes(b"short")
    with pytest.raises(BadSetting, match=r"cache\.key holds 5 bytes instead of 32"):
        load_or_create_key(tmp_path)


def test_a_key_that_others_may_read_is_closed(tmp_path: Path) -> None:
    load_or_create_key(tmp_path)
    (tmp_path / "cache.key").chmod(0o644)
    load_or_create_key(tmp_path)
    assert (tmp_path / "cache.key").stat().st_mode & 0o777 == 0o600


def test_a_data_dir_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="--data-dir"):
        load_or_create_key(tmp_path / "file")


def test_a_model_s_identity_changes_with_its_files_and_its_dtype(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    before = model_identity(str(tmp_path), "auto")
    assert model_identity(str(tmp_path), "auto") == before
    assert model_identity(str(tmp_path), "float32") != before
    weights.write_bytes(b"three")
    assert model_identity(str(tmp_path), "auto") != before
    assert len(model_identity("/no/such/model", "auto")) == 16
