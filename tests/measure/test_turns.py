"""What a turn is called, and what it should have found."""

from __future__ import annotations

import pytest

from keepwarm.measure.turns import classify, expected_cached_tokens


@pytest.mark.parametrize(
    ("prompt_tokens", "new_tokens", "expected"),
    [
        (600, 512, "warm"),
        (600, 513, "cold"),
        (10_000, 1_000, "warm"),
        (10_000, 1_001, "cold"),
        (204_800, 20_480, "warm"),
        (204_800, 20_481, "cold"),
        (450_000, 20_480, "warm"),
        (450_000, 20_481, "cold"),
    ],
)
def test_the_border_is_a_tenth_of_the_prompt_between_its_two_limits(
    prompt_tokens: int, new_tokens: int, expected: str
) -> None:
    assert classify(prompt_tokens=prompt_tokens, cached_tokens=prompt_tokens - new_tokens) == expected


@pytest.mark.parametrize(
    ("previous_tokens", "expected"), [(0, 0), (15, 0), (16, 0), (31, 0), (32, 16), (47, 16), (800, 784)]
)
def test_a_turn_expects_the_previous_one_in_full_blocks_less_one(previous_tokens: int, expected: int) -> None:
    assert expected_cached_tokens(previous_tokens=previous_tokens, block_size=16) == expected
