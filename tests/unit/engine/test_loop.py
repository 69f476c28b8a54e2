from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import pytest
from support.aio import aio
from support.echo_engine import MAX_MODEL_LEN, Behaviour, echo_of, make_engine, make_info

from octavo.core.errors import CapacityError
from octavo.core.params import SamplingParams
from octavo.core.plan import RequestDelta
from octavo.engine.core import Engine
from octavo.engine.loop import EngineLoop, failure
from octavo.transport.inproc import make_pair
from octavo.transport.messages import (
    Abort,
    Failed,
    FromEngine,
    Inspect,
    Inspected,
    Ready,
    Shutdown,
    StepDone,
    Submit,
    ToEngine,
)

PROMPT = (5, 6, 7)


class ScriptedLink:
    """Hands over one batch of messages at each call, and `Shutdown` when there are no more."""

    def __init__(self, *batches: Sequence[ToEngine]) -> None:
        self._batches = list(batches)
        self.timeouts: list[float | None] = []
        self.sent: list[FromEngine] = []

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        self.timeouts.append(timeout_s)
        return list(self._batches.pop(0)) if self._batches else [Shutdown()]

    def send(self, message: FromEngine) -> None:
        self.sent.append(message)

    def close(self) -> None:
        pass

    @property
    def steps(self) -> list[StepDone]:
        """What was sent after the start."""
        assert isinstance(self.sent[0], Ready)
        return [message for message in self.sent[2:] if isinstance(message, StepDone)]

    @property
    def deltas(self) -> list[RequestDelta]:
        return [delta for step in self.steps for delta in step.deltas]


def submit(name: str, num_tokens: int = 2, prompt: Sequence[int] = PROMPT, n: int = 1) -> Submit:
    params = SamplingParams(n=n, max_tokens=num_tokens, ignore_eos=True)
    return Submit(request_id=name, prompt_token_ids=tuple(prompt), params=params, seed=1)


def run(*batches: Sequence[ToEngine], engine: Engine | None = None) -> ScriptedLink:
    link = ScriptedLink(*batches)
    EngineLoop(engine or make_engine(Behaviour()), link, make_info(), clock=time.monotonic).run()
    return link


def test_says_first_that_it_is_ready_and_how_large_its_cache_is() -> None:
    link = run()
    ready, state = link.sent
    assert ready == Ready(make_info())
    assert isinstance(state, StepDone)
    assert state.deltas == ()
    assert state.stats.cache.num_free_blocks == make_info().cache_plan.num_blocks


def test_each_step_is_one_message() -> None:
    link = run([submit("a", 3), submit("b", 2)], [], [])
    assert [
        [(delta.request_id, delta.new_token_ids, delta.finish_reason) for delta in step.deltas]
        for step in link.steps
    ] == [
        [("a", (5,), None), ("b", (5,), None)],
        [("a", (6,), None), ("b", (6,), "length")],
        [("a", (7,), "length")],
    ]
    assert [step.stats.num_running for step in link.steps] == [2, 1, 0]
    assert link.steps[0].stats.num_prompt_tokens == 6


def test_waits_only_when_there_is_nothing_to_run() -> None:
    link = run([submit("a", 2)], [], [submit("b", 1)])
    assert link.timeouts == [None, 0, None, None]


def test_messages_between_steps_are_all_taken_in() -> None:
    link = run([submit("a", 9)], [submit("b", 9), submit("c", 9)], [Abort(("a", "b"))], [])
    assert [sorted(delta.request_id for delta in step.deltas) for step in link.steps] == [
        ["a"],
        ["a", "b", "c"],
        ["a", "b", "c"],
        ["c"],
        ["c"],
    ]
    ends = {d.request_id: d.finish_reason for d in link.steps[2].deltas}
    assert ends == {"a": "abort", "b": "abort", "c": None}


def test_request_that_cannot_be_served_is_refused_by_class_and_parameter() -> None:
    too_long = submit("a", prompt=[1] * MAX_MODEL_LEN, n=3)
    link = run([too_long, submit("b", 1)])
    refused = [delta for delta in link.deltas if delta.request_id != "b"]
    assert [delta.request_id for delta in refused] == ["a", "a#1", "a#2"]
    for delta in refused:
        assert delta.finish_reason == "error"
        assert delta.error_kind == "ContextTooLong"
        assert delta.error_param == "prompt"
        assert str(MAX_MODEL_LEN) in (delta.error or "")
    assert link.deltas[-1].new_token_ids == (5,)


def test_refusal_alone_is_told_without_a_step() -> None:
    link = run([submit("a", prompt=[])])
    assert [delta.error_kind for delta in link.deltas] == ["InvalidParameter"]
    assert link.timeouts == [None, None]


def test_abort_when_idle_afterwards_reports_free_blocks() -> None:
    link = run([submit("a", 50)], [Abort(("a",))])
    last = link.steps[-1]
    assert [delta.finish_reason for delta in last.deltas] == ["abort"]
    assert last.stats.num_running == 0
    assert last.stats.cache.num_used_blocks == 0
    assert link.timeouts == [None, 0, None]


def test_abort_of_unknown_requests_is_ignored() -> None:
    link = run([Abort(("nobody",))])
    assert link.steps == []


def test_shutdown_aborts_whatever_runs_or_arrives_with_it() -> None:
    link = run([submit("a", 50, n=2)], [Shutdown(), submit("b", 50)])
    ends = {d.request_id: d.finish_reason for d in link.steps[-1].deltas}
    assert ends == {"a": "abort", "a#1": "abort", "b": "abort"}
    assert link.steps[-1].stats.cache.num_used_blocks == 0


def test_unexpected_failure_is_reported_logged_and_ends_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = make_engine(Behaviour(fail_at_step=1))
    with caplog.at_level(logging.ERROR):
        link = run([submit("a", 50)], [], [], engine=engine)
    assert link.sent[-1] == Failed("ZeroDivisionError: a bug on purpose", "EngineDead")
    assert link.timeouts == [None, 0]
    assert "a bug on purpose" in caplog.text and "Traceback" in caplog.text


def test_a_panic_is_reported_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As libraries in Rust raise it."""

    def panic() -> None:
        raise Panic("index out of range")

    engine = make_engine(Behaviour())
    monkeypatch.setattr(engine, "step", panic)
    link = run([submit("a", 5)], engine=engine)
    assert link.sent[-1] == Failed("Panic: index out of range", "EngineDead")


def test_failure_keeps_the_class_of_deliberate_errors() -> None:
    assert failure(CapacityError("too small")) == Failed("too small", "CapacityError")
    assert failure(KeyError("x")) == Failed("KeyError: 'x'", "EngineDead")


@aio
async def test_idle_costs_nothing() -> None:
    front, end = make_pair()
    used: list[float] = []

    def serve() -> None:
        EngineLoop(make_engine(Behaviour()), end, make_info(), clock=time.monotonic).run()
        used.append(time.thread_time())

    thread = threading.Thread(target=serve)
    thread.start()
    time.sleep(0.5)
    await front.send(Shutdown())
    thread.join(5)
    assert used[0] < 0.05


def test_completions_hold_the_tokens_of_the_executor() -> None:
    link = run([submit("a", 40, prompt=range(3, 20), n=2)], *[[]] * 45)
    for name in ("a", "a#1"):
        tokens = [t for d in link.deltas if d.request_id == name for t in d.new_token_ids]
        assert tokens == echo_of(range(3, 20), 40)


def inspected(link: ScriptedLink) -> list[Inspected]:
    return [message for message in link.sent if isinstance(message, Inspected)]


def test_questions_are_answered_between_steps() -> None:
    link = run([submit("a", 3)], [Inspect(7, 10)], [submit("b", 3), Inspect(8, 10, 0, 4)])
    kinds = [type(message).__name__ for message in link.sent[2:]]
    assert kinds == ["StepDone", "Inspected", "StepDone", "Inspected", "StepDone", "StepDone"]
    first, second = inspected(link)
    assert (first.number, second.number) == (7, 8)
    (row,) = first.snapshot.rows
    assert (row.id, row.num_generated_tokens) == ("a", 1)
    assert first.snapshot.step_id == 0 and first.snapshot.blocks is None
    assert [(row.id, row.state) for row in second.snapshot.rows] == [
        ("a", "running"),
        ("b", "waiting"),
    ]
    assert second.snapshot.blocks is not None and len(second.snapshot.blocks.states) == 4


def test_an_idle_engine_answers_and_goes_on_waiting() -> None:
    link = run([Inspect(1, 10)], [Inspect(2, 0)])
    assert [message.number for message in inspected(link)] == [1, 2]
    assert link.steps == []
    assert link.timeouts == [None, None, None]


@pytest.mark.parametrize(
    ("first", "count", "found"), [(0, 1 << 30, -1), (2040, 100, 8), (9999, 5, 0)]
)
def test_blocks_that_are_not_there_are_left_out(first: int, count: int, found: int) -> None:
    (answer,) = inspected(run([Inspect(1, 0, first, count)]))
    assert answer.snapshot.blocks is not None
    wanted = make_info().cache_plan.num_blocks if found < 0 else found
    assert len(answer.snapshot.blocks.states) == wanted
