"""Timelines of a whole engine on a fake device, as viewers read them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from support.engines import Harness

from octavo.timeline.chrome import to_chrome
from octavo.timeline.events import StepEvent


def recorded(harness: Harness) -> tuple[list[StepEvent], list[dict[str, Any]]]:
    steps: list[StepEvent] = []
    harness.engine.record(steps.append)
    harness.run()
    return steps, to_chrome(steps)["traceEvents"]


def slices(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def crowded() -> Harness:
    """Chunks, a shared prefix, and too few blocks for all."""
    harness = Harness(num_blocks=14, block_size=4, max_num_batched_tokens=16)
    harness.add("long", list(range(30)), params={"max_tokens": 12})
    harness.add("same", list(range(30)), params={"max_tokens": 12})
    harness.add("short", [7, 8, 9], params={"max_tokens": 12})
    return harness


def test_slices_nest_and_time_never_goes_back() -> None:
    _, events = recorded(crowded())
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert timed == sorted(timed) and timed[0] >= 0
    for track in slices(events).values():
        open_ends: list[int] = []
        for event in track:
            assert event["dur"] > 0
            while open_ends and open_ends[-1] <= event["ts"]:
                open_ends.pop()
            assert not open_ends or event["ts"] + event["dur"] <= open_ends[-1]
            open_ends.append(event["ts"] + event["dur"])


def test_totals_are_those_of_the_requests() -> None:
    harness = crowded()
    steps, events = recorded(harness)
    tracks = {
        event["args"]["name"]: event["tid"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == 2
    }
    assert set(tracks) == {"long", "same", "short"}
    for name, tid in tracks.items():
        track = slices(events)[2, tid]
        sampled = sum(event["args"].get("sampled", 0) for event in track)
        assert sampled == len(harness.outputs[name])
        (queued,) = [event for event in track if event["name"] == "queued"]
        assert queued["args"]["prompt_tokens"] == (3 if name == "short" else 30)
        assert queued["args"]["cached_tokens"] == harness.firsts[name].num_cached_tokens
    total = sum(e["args"]["tokens"] for e in slices(events)[1, 1] if e["name"].startswith("step"))
    assert total == sum(step.num_tokens for step in steps)
    ends = [event["name"] for event in events if event["ph"] == "i" and "end" in event["name"]]
    assert ends == ["end: length"] * 3


def test_prompts_are_cut_and_blocks_run_out() -> None:
    steps, events = recorded(crowded())
    names = [event["name"] for event in events]
    assert "prefill 0-16" in names and "decode" in names
    preemptions = sum(step.stats.num_preemptions for step in steps)
    assert preemptions > 0
    assert sum(event["ph"] == "i" and event["name"] == "preempted" for event in events) == (
        preemptions
    )
    for event in events:
        if event["ph"] == "C" and event["name"] == "KV blocks":
            assert sum(event["args"].values()) == 14


def test_a_step_that_fails_is_told_of() -> None:
    harness = Harness(executor_options={"step_fails": lambda plan: plan.step_id == 1})
    harness.add("a", [1, 2, 3])
    steps, events = recorded(harness)
    assert [row.num_sampled for row in steps[1].rows] == [0]
    assert [event["name"] for event in events if event["ph"] == "i"] == ["end: error"]


def test_nothing_recorded_is_an_empty_trace() -> None:
    assert all(event["ph"] == "M" for event in to_chrome([])["traceEvents"])
