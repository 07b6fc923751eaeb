"""A rank whose blocks cannot go to host memory says so, and serves without."""

from __future__ import annotations

import logging

import pytest

from keepwarm.backend.host_attachment import attach_host
from keepwarm.core.host_tier import HostTierLost
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.core.step import ExecutorLimits
from keepwarm.engine.scripted import ScriptedExecutor
from tests.backend.ports import KEY, scripted_settings


def test_layers_with_a_window_in_blocks_of_their_own_go_without_loudly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    groups = (
        LayerGroup(kind="full", num_layers=1, window_tokens=None, bytes_per_token=8),
        LayerGroup(kind="window", num_layers=5, window_tokens=64, bytes_per_token=40),
    )
    limits = ExecutorLimits(
        layout=CacheLayout(block_size=16, groups=groups),
        num_blocks=64,
        num_window_blocks=32,
        max_num_seqs=2,
        max_model_len=512,
        vocab_size=32,
    )
    settings = scripted_settings(host_cache_socket="/nowhere/host.sock")
    with caplog.at_level(logging.WARNING):
        lost = attach_host(settings, ScriptedExecutor(limits=limits), hash_key=KEY, rank=1)
    assert isinstance(lost, HostTierLost)
    assert "layers with a window of 64 tokens" in str(lost)
    assert "--host-cache-gb has no effect" in caplog.text
