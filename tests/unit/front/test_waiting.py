from __future__ import annotations

import pytest

from octavo.front.waiting import Waiting


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_the_engine_may_begin_at_once_does_not_wait(clock: Clock) -> None:
    waiting = Waiting(clock)
    waiting.enter("a", 2, 100)
    waiting.enter("b", 1, 10)
    assert waiting.num_completions(4) == 0
    assert waiting.num_completions(2) == 1
    assert waiting.num_tokens == 110


def test_after_a_step_all_that_has_not_begun_waits(clock: Clock) -> None:
    waiting = Waiting(clock)
    waiting.enter("a", 2, 100)
    waiting.enter("b", 1, 10)
    waiting.step_done()
    waiting.leave("b", has_begun=True)
    assert waiting.num_completions(4) == 2
    waiting.enter("c", 1, 1)
    assert waiting.num_completions(4) == 3
    assert waiting.num_tokens == 101


@pytest.mark.parametrize("steps", [0, 1])
def test_a_request_leaves_once(clock: Clock, steps: int) -> None:
    waiting = Waiting(clock)
    waiting.enter("a", 3, 100)
    waiting.enter("b", 1, 1)
    for _ in range(steps):
        waiting.step_done()
    waiting.leave("a", has_begun=True)
    waiting.leave("a", has_begun=False)
    waiting.leave("unknown", has_begun=False)
    assert (waiting.num_completions(0), waiting.num_tokens) == (1, 1)
    waiting.clear()
    assert (waiting.num_completions(0), waiting.num_tokens) == (0, 0)
    waiting.leave("b", has_begun=False)
    assert (waiting.num_completions(0), waiting.num_tokens) == (0, 0)


def test_the_estimate_follows_the_recent_rate(clock: Clock) -> None:
    waiting = Waiting(clock)
    for number in range(30):
        waiting.enter(str(number), 1, 1)
    assert waiting.estimate_s() == 5.0  # nothing is known yet
    for number in range(10):  # one a second
        waiting.leave(str(number), has_begun=True)
        clock.now += 1
    assert waiting.estimate_s() == 20.0
    clock.now += 60  # and then none
    assert waiting.estimate_s() == 5.0


def test_the_estimate_is_bounded(clock: Clock) -> None:
    waiting = Waiting(clock)
    waiting.enter("a", 1, 1)
    waiting.leave("a", has_begun=True)
    assert waiting.estimate_s() == 1.0
    waiting.enter("b", 100_000, 1)
    assert waiting.estimate_s() == 60.0


def test_those_who_gave_up_say_nothing_about_the_rate(clock: Clock) -> None:
    waiting = Waiting(clock)
    for number in range(10):
        waiting.enter(str(number), 1, 1)
        waiting.leave(str(number), has_begun=False)
    assert waiting.estimate_s() == 5.0
