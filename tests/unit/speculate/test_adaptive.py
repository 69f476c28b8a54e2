"""Draft lengths follow what steps cost, and what guesses are worth."""

from __future__ import annotations

import pytest

from octavo.speculate.adaptive import Acceptance, DraftLengths, StepCost


def lengths(*, fixed_s: float, per_token_s: float, longest: int = 8) -> DraftLengths:
    """One that has seen steps of such a machine."""
    made = DraftLengths(longest)
    for num_tokens in (1, 2, 4, 8, 9, 16, 3, 5, 12, 1, 7):
        made.observe_step(num_tokens, fixed_s + per_token_s * num_tokens)
    return made


def learn(made: DraftLengths, name: str, *, right: bool, times: int = 40) -> None:
    for _ in range(times):
        made.observe_draft(name, 4 if right else 0, 4)


def test_costs_are_a_line() -> None:
    cost = StepCost()
    assert not cost.is_known
    for num_tokens in range(1, 20):
        cost.observe(num_tokens, 0.010 + 0.002 * num_tokens)
    assert cost.is_known
    assert cost.per_token_s == pytest.approx(0.002)
    assert cost.seconds(30) == pytest.approx(0.070)


def test_steps_of_one_size_tell_no_slope() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.observe(4, 0.01)
    assert not cost.is_known


def test_nearly_free_guesses_are_all_made() -> None:
    made = lengths(fixed_s=0.010, per_token_s=0.00001)
    learn(made, "a", right=True)
    assert made.choose("a", 1, 1) == 8


def test_guesses_that_are_never_right_are_not_made() -> None:
    made = lengths(fixed_s=0.010, per_token_s=0.001)
    learn(made, "a", right=False)
    assert made.choose("a", 1, 1) == 0


def test_where_each_token_takes_its_time_there_is_nothing_to_win() -> None:
    made = lengths(fixed_s=0.0, per_token_s=0.002)
    learn(made, "a", right=True)
    assert made.choose("a", 100, 100) == 0


def test_a_larger_batch_drafts_less() -> None:
    made = lengths(fixed_s=0.010, per_token_s=0.001, longest=16)
    for _ in range(40):
        made.observe_draft("a", 3, 4)
    chosen = [made.choose("a", rows, rows) for rows in (1, 4, 16, 64)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] > chosen[-1]


def test_what_did_not_pay_is_tried_again_from_time_to_time() -> None:
    made = lengths(fixed_s=0.010, per_token_s=0.005)
    learn(made, "a", right=False)
    chosen = [made.choose("a", 1, 1) for _ in range(200)]
    assert set(chosen[:60]) == {0}
    assert 1 in chosen


def test_requests_learn_for_themselves_and_newcomers_from_all() -> None:
    made = lengths(fixed_s=0.010, per_token_s=0.002)
    learn(made, "good", right=True)
    learn(made, "bad", right=False)
    assert made.choose("good", 2, 2) > made.choose("bad", 2, 2)
    made.forget("bad")
    assert made.choose("bad", 2, 2) == made.choose("new", 2, 2)


def test_only_judged_guesses_count() -> None:
    acceptance = Acceptance(0.5)
    for _ in range(100):
        acceptance.observe(1, 8)  # one right, one wrong, six never reached
    assert acceptance.share == pytest.approx(0.5)
