"""Draft lengths follow what steps cost, and what guesses are worth."""

from __future__ import annotations

from itertools import pairwise

import pytest

from octavo.speculate.adaptive import Acceptance, DraftLengths


def lengths(
    *, fixed_s: float, per_token_s: float, longest: int = 8, pass_s: float | None = None
) -> DraftLengths:
    """One that has seen steps of such a machine."""
    made = DraftLengths(longest, by_model=pass_s is not None)
    for num_tokens in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512):
        made.observe_step(num_tokens, fixed_s + per_token_s * num_tokens)
        if pass_s is not None:
            made.observe_drafting(num_tokens, 2, 2 * pass_s)
    return made


def learn(made: DraftLengths, name: str, *, right: bool, times: int = 40) -> None:
    for _ in range(times):
        made.observe_draft(name, 4 if right else 0, 4)


def choose(made: DraftLengths, name: str = "a", *, rows: int = 1) -> int:
    made.begin_step([name, *(f"other {number}" for number in range(rows - 1))])
    return made.choose(name)


def test_nearly_free_guesses_are_all_made() -> None:
    made = lengths(fixed_s=0.010, per_token_s=0.00001)
    learn(made, "a", right=True)
    assert choose(made) == 8


def test_guesses_that_are_never_right_are_not_made() -> None:
    made = lengths(fixed_s=0.010, per_token_s=0.001)
    learn(made, "a", right=False)
    assert choose(made) == 0


def test_where_each_token_takes_its_time_there_is_nothing_to_win() -> None:
    made = lengths(fixed_s=0.0, per_token_s=0.002)
    learn(made, "a", right=True)
    assert choose(made, rows=100) == 0


@pytest.mark.parametrize("pass_s", [None, 0.001])
def test_a_larger_batch_drafts_less(pass_s: float | None) -> None:
    made = lengths(fixed_s=0.010, per_token_s=0.001, longest=16, pass_s=pass_s)
    for _ in range(40):
        made.observe_draft("a", 3, 4)
    chosen = [choose(made, rows=rows) for rows in (1, 4, 16, 64)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] > chosen[-1]


def test_the_length_with_the_most_tokens_a_second() -> None:
    """A model's guesses cost a pass each: neither none nor all of them is best."""
    share, step_s, pass_s = 0.75, 0.012, 0.004
    made = lengths(fixed_s=step_s, per_token_s=0.0, pass_s=pass_s)
    for _ in range(60):
        made.observe_draft("a", 3, 4)  # three right ones, and a wrong one
    speeds = [
        sum(share**j for j in range(length + 1)) / (step_s + pass_s * length) for length in range(9)
    ]
    assert choose(made) == speeds.index(max(speeds))


def test_drafts_by_a_model_are_equally_long() -> None:
    made = lengths(fixed_s=0.010, per_token_s=0.0, pass_s=0.001)
    learn(made, "good", right=True)
    learn(made, "bad", right=False)
    made.begin_step(["good", "bad"])
    assert made.choose("good") == made.choose("bad") > 0
    assert made.choose("not in this step") == 0


@pytest.mark.parametrize("pass_s", [None, 0.004])
def test_what_did_not_pay_is_tried_again_ever_less_often(pass_s: float | None) -> None:
    made = lengths(fixed_s=0.010, per_token_s=0.005, pass_s=pass_s)
    learn(made, "a", right=False)
    chosen = [choose(made) for _ in range(2000)]
    tried = [step for step, length in enumerate(chosen) if length]
    assert {chosen[step] for step in tried} == {1}
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert 50 < tried[0] < 100
    assert len(gaps) >= 3
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 4 * tried[0]


def test_a_probe_by_a_model_is_for_a_few_rows() -> None:
    made = lengths(fixed_s=0.0, per_token_s=0.005, pass_s=0.004)
    names = [f"r{number}" for number in range(64)]
    for _ in range(200):
        made.begin_step(names)
        drafting = [name for name in names if made.choose(name)]
        assert len(drafting) in (0, 8)
        if drafting:
            return
    pytest.fail("none was tried")


def test_rows_with_nothing_to_guess_leave_room_for_the_others() -> None:
    """A wide batch has room for one draft where it has none for sixteen."""
    made = DraftLengths(8)
    for num_tokens in (8, 16, 24, 32, 64, 128, 256):
        made.observe_step(num_tokens, max(0.024, 0.001 * num_tokens))
    for _ in range(40):
        made.observe_draft("a", 3, 4)
    crowded = choose(made, rows=16)
    for _ in range(200):
        made.observe_guess(is_made=False)
    assert choose(made, rows=16) > crowded


def test_requests_learn_for_themselves_and_newcomers_from_all() -> None:
    made = lengths(fixed_s=0.010, per_token_s=0.001)
    learn(made, "good", right=True)
    learn(made, "bad", right=False)
    assert choose(made, "good") > choose(made, "bad")
    made.forget("bad")
    assert choose(made, "bad") == choose(made, "new")


def test_only_judged_guesses_count() -> None:
    acceptance = Acceptance(0.5)
    for _ in range(100):
        acceptance.observe(1, 8)  # one right, one wrong, six never reached
    assert acceptance.share == pytest.approx(0.5)


def test_it_finds_its_way_from_nothing() -> None:
    """Whatever is tried first, it ends where the tokens a second are the most."""
    for pass_s, rows, expected in ((0.003, 1, 5), (0.003, 64, 0)):
        made = DraftLengths(8, by_model=True)
        names = [f"r{number}" for number in range(rows)]
        for _ in range(60):
            made.begin_step(names)
            length = made.choose(names[0])
            num_tokens = rows * (1 + length)
            made.observe_step(num_tokens, max(0.012, 0.002 * num_tokens))  # six are free
            if length:
                made.observe_drafting(rows, length, length * pass_s * max(1.0, rows / 8))
                for name in names:
                    made.observe_draft(name, length, length)
        assert abs(length - expected) <= 1


def serve(
    made: DraftLengths, *, rows: int, steps: int, times: float, pass_s: float | None
) -> list[int]:
    """A machine that is bound by memory up to 10 tokens, and ``times`` slower than it could be;
    all guesses are right. Returns the lengths that were chosen."""
    names, chosen = [f"r{number}" for number in range(rows)], []
    for _ in range(steps):
        made.begin_step(names)
        lengths = [made.choose(name) for name in names]
        num_tokens = rows + sum(lengths)
        made.observe_step(num_tokens, times * max(0.010, 0.001 * num_tokens))
        for name, length in zip(names, lengths, strict=True):
            if length:
                made.observe_draft(name, length, length)
        if pass_s is not None and any(lengths):
            made.observe_drafting(rows, max(lengths), times * max(lengths) * pass_s)
        chosen.append(max(lengths))
    return chosen


@pytest.mark.parametrize("before", [0.3, 3.0])
def test_a_machine_that_changes_its_speed_misleads_for_a_while_only(before: float) -> None:
    """8 rows: 800 tokens a second without guesses, 625 with four that a model makes. What was learned
    while the machine was slower, or quicker, must not keep it guessing."""
    made = DraftLengths(4, by_model=True)
    serve(made, rows=8, steps=100, times=before, pass_s=0.006)
    serve(made, rows=1, steps=200, times=1.0, pass_s=0.006)
    chosen = serve(made, rows=8, steps=400, times=1.0, pass_s=0.006)
    assert sum(length > 0 for length in chosen[200:]) <= 10


@pytest.mark.parametrize("pass_s", [None, 0.001])
def test_where_guessing_pays_a_step_without_is_rare(pass_s: float | None) -> None:
    made = DraftLengths(4, by_model=pass_s is not None)
    chosen = serve(made, rows=1, steps=1000, times=1.0, pass_s=pass_s)[200:]
    assert 1 <= chosen.count(0) <= 800 // 64 + 1
    assert sum(chosen) > 3.8 * 780
