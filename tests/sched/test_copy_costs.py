"""Whether a promotion pays, by what was measured."""

from __future__ import annotations

from keepwarm.sched.copy_costs import CopyCosts


def measured(*, tokens_a_second: int, bytes_a_second: int) -> CopyCosts:
    costs = CopyCosts()
    costs.computed(num_tokens=tokens_a_second, num_read=tokens_a_second, compute_s=1.0)
    costs.promoted(num_bytes=bytes_a_second, copy_s=1.0)
    return costs


def test_what_was_never_measured_pays() -> None:
    costs = CopyCosts()
    assert costs.pays(num_tokens=1, num_bytes=1 << 40)
    costs.computed(num_tokens=100, num_read=100, compute_s=0.001)
    assert costs.pays(num_tokens=1, num_bytes=1 << 40)


def test_the_faster_way_is_taken() -> None:
    costs = measured(tokens_a_second=1_000, bytes_a_second=1_000_000)
    assert costs.pays(num_tokens=500, num_bytes=400_000)
    assert not costs.pays(num_tokens=500, num_bytes=600_000)


def test_steps_that_mostly_write_answers_do_not_count() -> None:
    costs = measured(tokens_a_second=1_000, bytes_a_second=1_000_000)
    for _ in range(100):
        costs.computed(num_tokens=8, num_read=3, compute_s=1.0)
        costs.computed(num_tokens=0, num_read=0, compute_s=0.0)
    assert not costs.pays(num_tokens=500, num_bytes=600_000)


def test_a_rate_follows_what_is_measured() -> None:
    costs = measured(tokens_a_second=1_000, bytes_a_second=1_000_000)
    for _ in range(40):
        costs.promoted(num_bytes=10_000_000, copy_s=1.0)
    assert costs.pays(num_tokens=500, num_bytes=4_000_000)


def test_now_and_then_one_that_does_not_seem_to_pay_is_tried() -> None:
    costs = measured(tokens_a_second=1_000, bytes_a_second=1)
    tried = [costs.pays(num_tokens=500, num_bytes=600_000) for _ in range(64)]
    assert 1 <= sum(tried) <= 8


def test_always_is_always() -> None:
    costs = CopyCosts(always=True)
    costs.computed(num_tokens=1_000, num_read=1_000, compute_s=1.0)
    costs.promoted(num_bytes=1, copy_s=1.0)
    assert costs.pays(num_tokens=1, num_bytes=1_000)
