"""One step's attention against the plain formula, for random layouts of blocks, chunks and windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from keepwarm.core.ids import RequestId, Slot, block_ids, token_ids
from keepwarm.core.layout import CacheLayout
from keepwarm.core.sampling import GREEDY
from keepwarm.core.step import ExecutorLimits, SequenceStart, SequenceWork

pytest.importorskip("torch")

import torch

from keepwarm.engine.kv_pools import KvPools, LayerShape
from keepwarm.engine.sequences import SequenceState
from keepwarm.engine.step_layout import StepLayout

pytestmark = pytest.mark.engine

HEADS, KEY_HEADS, HEAD_DIM = 6, 2, 8
SCALE = HEAD_DIM**-0.5


@dataclass(frozen=True, slots=True)
class Case:
    """A sequence: `past` tokens have KV, `fresh` are computed; its blocks come in runs of `run_blocks`."""

    past: int
    fresh: int
    run_blocks: int


CASES = st.builds(
    Case,
    past=st.sampled_from([0, 1, 3, 16, 17, 130, 300, 600]),
    fresh=st.sampled_from([1, 1, 2, 7, 9, 40]),
    run_blocks=st.sampled_from([1, 2, 9, 40, 1000]),
)


@seed(11)
@settings(max_examples=40, deadline=None)
@given(
    cases=st.lists(CASES, min_size=1, max_size=4),
    window=st.sampled_from([None, 4, 33, 512]),
    block_size=st.sampled_from([4, 16]),
)
def test_every_row_reads_its_own_past_and_nothing_else(
    cases: list[Case], window: int | None, block_size: int
) -> None:
    torch.manual_seed(3)
    states = _states(cases, block_size)
    pools = _pools(window, block_size)
    full = [_random_kv(case.past + case.fresh) for case in cases]
    for state, (keys, values), case in zip(states, full, cases, strict=True):
        _store(pools, state, block_size, keys[: case.past], values[: case.past])
    works = [
        (SequenceWork(slot=Slot(i), start=case.past, end=case.past + case.fresh, sample=True), states[i])
        for i, case in enumerate(cases)
    ]
    layout = StepLayout(pools=pools, block_size=block_size, windows={window}, dtype=torch.float32)
    step = layout.inputs(works).attention
    query = torch.randn(HEADS, sum(case.fresh for case in cases), HEAD_DIM)
    key, value = (
        torch.cat([pair[which][case.past :] for pair, case in zip(full, cases, strict=True)]).transpose(0, 1)
        for which in (0, 1)
    )
    output = step.attend(0, query, key, value, SCALE, window)
    row = 0
    for (keys, values), case in zip(full, cases, strict=True):
        rows = query[:, row : row + case.fresh]
        expected = _plain(rows, keys, values, case.past, window)
        torch.testing.assert_close(output[row : row + case.fresh], expected, atol=1e-5, rtol=1e-5)
        row += case.fresh


def _plain(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, past: int, window: int | None
) -> torch.Tensor:
    repeats = HEADS // KEY_HEADS
    keys, values = (part.repeat_interleave(repeats, 1).transpose(0, 1) for part in (keys, values))
    scores = query @ keys.transpose(1, 2) * SCALE
    position = torch.arange(past, past + query.shape[1]).unsqueeze(1)
    of_key = torch.arange(keys.shape[1]).unsqueeze(0)
    hidden = of_key > position
    if window is not None:
        hidden |= of_key <= position - window
    weights: torch.Tensor = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return (weights @ values).transpose(0, 1)


def _states(cases: list[Case], block_size: int) -> list[SequenceState]:
    """Block tables in which no two runs touch, the later sequences' before the earlier ones'."""
    limits = ExecutorLimits(
        layout=CacheLayout(block_size=block_size, groups=()),
        num_blocks=8_000,
        max_num_seqs=8,
        max_model_len=1024,
        vocab_size=10,
    )
    next_block = 7_000
    states = []
    for index, case in enumerate(cases):
        tokens = case.past + case.fresh
        num_blocks = -(-tokens // block_size)
        blocks: list[int] = []
        while len(blocks) < num_blocks:
            length = min(case.run_blocks, num_blocks - len(blocks))
            next_block -= length + 1
            blocks.extend(range(next_block, next_block + length))
        start = SequenceStart(
            slot=Slot(index),
            request_id=RequestId(f"turn-{index}"),
            tokens=token_ids([1] * tokens),
            num_prompt_tokens=tokens,
            blocks=block_ids(blocks),
            sampling=GREEDY,
        )
        states.append(SequenceState(start, limits, seed=0))
    return states


def _pools(window: int | None, block_size: int) -> KvPools:
    shape = LayerShape(num_key_heads=KEY_HEADS, head_dim=HEAD_DIM, window_tokens=window)
    pools = KvPools(shapes=[shape], num_blocks=8_000, block_size=block_size, dtype=torch.float32)
    layer = pools.layer(0)
    for pool in (layer.key_rows, layer.value_rows):
        pool.fill_(float("nan"))  # whoever reads what was never written, shows it
    return pools


def _random_kv(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(num_tokens, KEY_HEADS, HEAD_DIM), torch.randn(num_tokens, KEY_HEADS, HEAD_DIM)


def _store(
    pools: KvPools, state: SequenceState, block_size: int, keys: torch.Tensor, values: torch.Tensor
) -> None:
    positions = np.arange(len(keys))
    rows = torch.from_numpy(state.blocks[positions // block_size] * block_size + positions % block_size)
    layer = pools.layer(0)
    for pool, new in ((layer.key_rows, keys), (layer.value_rows, values)):
        pool[rows] = new
