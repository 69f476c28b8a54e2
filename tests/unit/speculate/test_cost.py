"""Times of steps are learned as they are, whatever their shape."""

from __future__ import annotations

import pytest

from octavo.speculate.cost import StepCost


def learned(*steps: tuple[float, float]) -> StepCost:
    cost = StepCost()
    for size, seconds in steps:
        cost.observe(size, seconds)
    return cost


def test_a_knee_is_kept() -> None:
    """Flat while memory is what bounds, then linear: no line fits both."""
    cost = learned(*((size, max(0.010, 0.001 * size)) for size in (1, 2, 4, 8, 16, 32, 64)))
    for size, seconds in ((1, 0.010), (6, 0.010), (24, 0.024), (48, 0.048), (128, 0.128)):
        assert cost.seconds(size) == pytest.approx(seconds)


def test_what_is_unknown_is_cheap() -> None:
    assert StepCost().seconds(7) == 0
    cost = learned((8, 0.08))
    assert cost.seconds(4) == pytest.approx(0.04)
    assert cost.seconds(16) == pytest.approx(0.08)


def test_more_tokens_never_take_less() -> None:
    cost = learned((1, 0.02), (8, 0.01), (16, 0.03))
    assert cost.seconds(8) == pytest.approx(0.02)


def test_one_interruption_does_not_count_for_much() -> None:
    cost = learned(*[(4, 0.01)] * 20, (4, 5.0))
    assert cost.seconds(4) < 0.013
    for _ in range(60):  # but a machine that has become slower does
        cost.observe(4, 0.02)
    assert cost.seconds(4) == pytest.approx(0.02, rel=0.1)
