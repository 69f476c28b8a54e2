"""Requests that wait until something has been made for them, beside the steps of others."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from support.engines import Harness
from support.fake_executor import expected_output

from octavo.core.errors import ContextTooLong, InvalidParameter
from octavo.core.params import SamplingParams, Structured
from octavo.engine.core import Engine

FORM = Structured.regex("a")


class Workshop:
    """A `Preparer` whose work is done when the test says so."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def prepare(self, params: SamplingParams) -> Future[Any] | None:
        if params.structured is None:
            return None
        self.futures.append(Future())
        return self.futures[-1]


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture
def h(workshop: Workshop) -> Harness:
    h = Harness(max_model_len=30)
    h.engine = Engine(
        h.scheduler, h.executor, clock=h.clock, check_invariants=True, preparer=workshop
    )
    return h


def test_others_go_on_while_one_is_prepared(h: Harness, workshop: Workshop) -> None:
    h.add("slow", [1] * 3, params={"structured": FORM})
    assert h.engine.has_work and h.engine.wait_s == pytest.approx(0.005)
    h.add("quick", [2] * 3)
    assert h.engine.wait_s == 0
    stats = h.step()
    assert (stats.num_running, stats.num_waiting) == (1, 1)
    while "quick" not in h.ended:
        h.step()
    assert "slow" not in h.outputs
    assert h.step().num_rows == 0
    workshop.futures[0].set_result(None)
    h.run()
    assert h.outputs["slow"] == expected_output([1] * 3, 0, 5)
    assert h.engine.wait_s is None and not h.engine.has_work


def test_what_cannot_be_made_is_refused_for_all_completions(h: Harness, workshop: Workshop) -> None:
    h.add("a", [1] * 3, params={"structured": FORM, "n": 2})
    h.add("b", [1] * 3)
    workshop.futures[0].set_exception(InvalidParameter("no such form", param="structured"))
    h.run()
    for name in ("a", "a#1"):
        end = h.ended[name]
        assert (end.error, end.error_kind) == ("no such form", "InvalidParameter")
        assert (end.error_param, end.finish_reason) == ("structured", "error")
    assert h.ended["b"].finish_reason == "length"


def test_the_scheduler_may_refuse_it_afterwards(h: Harness, workshop: Workshop) -> None:
    h.add("a", [1] * 30, params={"structured": FORM})
    workshop.futures[0].set_result(None)
    h.run()
    assert h.ended["a"].error_kind == ContextTooLong.__name__


def test_names_in_use_are_refused(h: Harness) -> None:
    h.add("a", [1], params={"structured": FORM})
    with pytest.raises(InvalidParameter, match="in use"):
        h.add("a", [1])


def test_aborted_while_it_waits(h: Harness, workshop: Workshop) -> None:
    h.add("a", [1] * 3, params={"structured": FORM, "n": 3})
    h.add("b", [1] * 3, params={"structured": FORM})
    h.abort("a#1", "a#1", "unknown")
    assert set(h.ended) == {"a#1"}
    assert h.engine.stats().num_waiting == 3
    h.abort("b")
    assert h.ended["b"].finish_reason == "abort"
    for future in workshop.futures:
        future.set_result(None)
    h.run()
    assert {name: end.finish_reason for name, end in h.ended.items()} == {
        "a": "length",
        "a#1": "abort",
        "a#2": "length",
        "b": "abort",
    }


def test_all_can_be_aborted(h: Harness) -> None:
    h.add("a", [1] * 3, params={"structured": FORM, "n": 2})
    h.add("b", [1] * 3)
    h.take(h.engine.abort_all())
    assert set(h.ended) == {"a", "a#1", "b"} and not h.engine.has_work


def test_waiting_for_it(h: Harness, workshop: Workshop) -> None:
    h.engine.prepare(SamplingParams())
    future: Future[Any] = Future()
    future.set_exception(InvalidParameter("no such form"))
    workshop.prepare = lambda params: future  # type: ignore[method-assign]
    with pytest.raises(InvalidParameter, match="no such form"):
        h.engine.prepare(SamplingParams(structured=FORM))
