"""What a draw may and may not choose."""

from __future__ import annotations

import math

import pytest

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.sampling import GREEDY, Sampling

pytest.importorskip("torch")

import torch

from keepwarm.engine.sampling import Draw, DrawnToken, draw_tokens, race_times

pytestmark = pytest.mark.engine

LOGITS = torch.tensor([0.0, math.log(4.0), math.log(2.0), math.log(3.0), -50.0])
"""Probabilities of 0.1, 0.4, 0.2, 0.3 and about nothing."""


def draws(sampling: Sampling, num: int = 300, logits: torch.Tensor = LOGITS) -> list[int]:
    """Tokens at `num` positions of one seeded request."""
    seed = 5 if sampling.seed is None else sampling.seed
    wanted = [Draw(sampling=sampling, seed=seed, position=i, name="turn") for i in range(num)]
    return [drawn.token for drawn in draw_tokens(logits.expand(num, -1), wanted)]


def one(sampling: Sampling, logits: torch.Tensor = LOGITS) -> DrawnToken:
    return draw_tokens(logits.unsqueeze(0), [Draw(sampling=sampling, seed=1, position=0, name="turn")])[0]


def test_greedy_takes_the_best_token() -> None:
    assert set(draws(GREEDY, 5)) == {1}


def test_plain_draws_follow_the_distribution() -> None:
    tokens = draws(Sampling(), 4000)
    shares = [tokens.count(token) / len(tokens) for token in range(5)]
    assert shares == pytest.approx([0.1, 0.4, 0.2, 0.3, 0.0], abs=0.03)


def test_temperature_sharpens_and_flattens() -> None:
    assert set(draws(Sampling(temperature=0.01))) == {1}
    assert set(draws(Sampling(temperature=1e-300))) == {1}
    flat = draws(Sampling(temperature=50.0), 2000)
    assert min(flat.count(token) for token in range(4)) > 300


def test_top_k_keeps_the_k_most_likely() -> None:
    assert set(draws(Sampling(top_k=2))) == {1, 3}
    assert set(draws(Sampling(top_k=1))) == {1}
    assert set(draws(Sampling(top_k=99), 2000)) == {0, 1, 2, 3}


def test_top_p_keeps_the_fewest_that_reach_the_mass() -> None:
    assert set(draws(Sampling(top_p=0.39))) == {1}
    assert set(draws(Sampling(top_p=0.6))) == {1, 3}
    assert set(draws(Sampling(top_p=0.0))) == {1}
    assert set(draws(Sampling(top_p=0.85))) == {1, 2, 3}


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    # Of 0.4 and 0.3, the first alone is 57%.
    assert set(draws(Sampling(top_k=2, top_p=0.5))) == {1}
    assert set(draws(Sampling(top_k=2, top_p=0.6))) == {1, 3}


def test_min_p_keeps_what_is_likely_enough_against_the_best() -> None:
    assert set(draws(Sampling(min_p=0.7))) == {1, 3}
    assert set(draws(Sampling(min_p=1.0))) == {1}
    assert set(draws(Sampling(min_p=0.2), 1000)) == {0, 1, 2, 3}


def test_a_flat_distribution_wider_than_the_first_look_is_still_cut_right() -> None:
    flat = torch.zeros(5000)
    assert len(set(draws(Sampling(top_p=0.9), 3000, flat))) > 1500
    assert len(set(draws(Sampling(min_p=0.5), 3000, flat))) > 1500


def test_the_same_seed_and_position_give_the_same_draw_whatever_is_beside_it() -> None:
    sampling = Sampling(seed=9)
    draw = Draw(sampling=sampling, seed=9, position=17, name="turn")
    other = Draw(sampling=Sampling(top_k=3), seed=4, position=2, name="other")
    alone = draw_tokens(LOGITS.unsqueeze(0), [draw])
    beside = draw_tokens(LOGITS.expand(3, -1), [other, draw, other])
    assert alone[0] == beside[1]
    assert draws(sampling) == draws(sampling)
    assert draws(sampling) != draws(Sampling(seed=10))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**64 - 1, 2**70])
def test_any_integer_is_a_seed(seed: int) -> None:
    times = race_times(seed, 3, 1000)
    assert (times > 0).all()
    assert 0.8 < times.mean() < 1.2


def test_rounding_of_the_logits_seldom_moves_a_draw() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, generator=generator)  # so flat that every boundary is close
    nudged = logits + 1e-6 * torch.randn(20_000, generator=generator)
    pairs = zip(draws(Sampling(), 200, logits), draws(Sampling(), 200, nudged), strict=True)
    assert sum(one != other for one, other in pairs) <= 2


def test_a_token_of_no_probability_is_never_drawn() -> None:
    masked = torch.tensor([float("-inf"), 1.0, float("-inf"), 1.0, float("-inf")])
    for sampling in (Sampling(), Sampling(top_k=5), Sampling(top_p=0.999), Sampling(min_p=1e-9)):
        assert set(draws(sampling, 500, masked)) == {1, 3}


def test_logprobs_are_of_the_models_own_distribution_before_temperature() -> None:
    drawn = one(Sampling(temperature=0.01, num_logprobs=2))
    assert drawn.logprobs is not None
    assert drawn.logprobs.logprob == pytest.approx(math.log(0.4), abs=1e-5)
    assert [token for token, _ in drawn.logprobs.top] == [1, 3]
    assert drawn.logprobs.top[1][1] == pytest.approx(math.log(0.3), abs=1e-5)


def test_the_chosen_tokens_logprob_comes_without_any_top_ones() -> None:
    drawn = one(Sampling(temperature=0.0, num_logprobs=0))
    assert drawn.logprobs is not None
    assert drawn.logprobs.top == ()
    assert one(GREEDY).logprobs is None


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
def test_logits_that_are_not_numbers_are_an_error(wrong: float, sampling: Sampling) -> None:
    logits = LOGITS.clone()
    logits[2] = wrong
    with pytest.raises(InvariantBroken, match="no finite logits for token 0 of turn"):
        one(sampling, logits)
    with pytest.raises(InvariantBroken, match="no finite logits"):
        one(sampling, torch.full((5,), float("-inf")))
