"""The queue of cached blocks equals an `OrderedDict`, also across compactions of its log."""

from __future__ import annotations

from collections import OrderedDict
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.cache import eviction
from keepwarm.cache.eviction import EvictionQueue
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import block_ids

NUM_BLOCKS = 6

steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "pop"]), st.permutations(range(NUM_BLOCKS)), st.integers(0, 6)
    ),
    max_size=60,
)


@settings(deadline=None)
@given(steps, st.sampled_from([2, 4]))
def test_who_came_first_leaves_first(steps: list[tuple[str, list[int], int]], log_entries: int) -> None:
    with (
        patch.object(eviction, "_LOG_ENTRIES_PER_BLOCK", log_entries),
        patch.object(eviction, "_COMPACTED_AT_ONCE", 4),
        patch.object(eviction, "_MIN_WINDOW", 1),
    ):
        check_against_model(steps)


def check_against_model(steps: list[tuple[str, list[int], int]]) -> None:
    references = np.zeros(NUM_BLOCKS, dtype=np.int64)
    queue, model = EvictionQueue(references), OrderedDict[int, None]()
    for what, order, count in steps:
        match what:
            case "add":
                blocks = [block for block in order if block not in model][:count]
                references[blocks] = 0
                queue.add(block_ids(blocks))
                model.update(dict.fromkeys(blocks))
            case "remove":
                blocks = [block for block in order if block in model][:count]
                references[blocks] = 1
                queue.remove(len(blocks))
                for block in blocks:
                    del model[block]
            case _:
                expected = [model.popitem(last=False)[0] for _ in range(min(count, len(model)))]
                assert queue.pop(len(expected)).tolist() == expected
        assert len(queue) == len(model)
        assert queue.mask().nonzero()[0].tolist() == sorted(model)


def test_a_long_conversation_that_comes_and_goes_never_fills_the_log() -> None:
    references = np.zeros(1_000, dtype=np.int64)
    queue = EvictionQueue(references)
    rest, conversation = block_ids(range(10)), block_ids(range(10, 1_000))
    queue.add(conversation)
    queue.add(rest)
    for _ in range(50):
        references[conversation] += 1
        queue.remove(len(conversation))
        references[conversation] -= 1
        queue.add(conversation[::-1])
    assert queue.pop(12).tolist() == [*range(10), 999, 998]


def test_more_than_there_are_cannot_be_evicted() -> None:
    queue = EvictionQueue(np.zeros(4, dtype=np.int64))
    queue.add(block_ids([3]))
    with pytest.raises(InvariantBroken, match="2 blocks to evict of 1"):
        queue.pop(2)
