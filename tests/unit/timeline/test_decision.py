"""What a replay reads from a trace is what the engine did."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.engines import Harness

from octavo.core.plan import ScheduledRequest
from octavo.timeline.chrome import ChromeTrace
from octavo.timeline.events import StepEvent

Json = dict[str, Any]
STATES = ("free", "cached", "used", "findable")


class Replay:
    """Follows a harness by its trace alone, and compares after every step."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.trace = ChromeTrace()
        self.decisions: list[Json] = []
        self.tables: dict[str, list[int]] = {}
        self.states = ["free"] * harness.blocks.num_blocks
        harness.engine.record(self.take)

    def take(self, step: StepEvent) -> None:
        (event,) = [e for e in self.trace.add(step) if e["name"] == f"step {step.step_id}"]
        decision = event["args"]["decision"]
        if not self.decisions:
            first = self.trace.header()["otherData"]["octavo"]
            self.tables = {item["id"]: list(item["blocks"]) for item in first["running"]}
            self.change(first["states"])
        self.decisions.append(decision)
        self.apply(decision)
        blocks, requests = self.harness.blocks, self.harness.scheduler.requests
        held = {r.request_id: list(blocks.block_ids(r.request_id)) for r in requests}
        assert self.tables == {name: table for name, table in held.items() if table}
        counts, published = blocks.ref_counts, blocks.published
        assert self.states == [
            STATES[2 * (counts[block] > 0) + (block in published)]
            for block in range(blocks.num_blocks)
        ]

    def change(self, states: Json) -> None:
        for name, ids in states.items():
            for block in ids:
                self.states[block] = name

    def apply(self, decision: Json) -> None:
        for item in decision.get("preempted", []):
            assert len(self.tables.pop(item["id"])) == item["blocks"]
        for name in decision.get("left", []):
            del self.tables[name]
        for item in decision.get("admitted", []):
            self.tables[item["id"]] = list(item.get("blocks", []))
        for row in decision.get("rows", []):
            self.tables[row["id"]] += row.get("new_blocks", [])
        for copy in decision.get("copied", []):
            assert self.tables[copy["id"]][copy["index"]] == copy["source"]
            self.tables[copy["id"]][copy["index"]] = copy["target"]
        for item in decision.get("ended", []):
            assert len(self.tables.pop(item["id"], [])) == item["blocks"]
        self.change(decision.get("states", {}))


@pytest.mark.parametrize("seed", range(6))
def test_blocks_and_tables_follow_from_the_trace(seed: int) -> None:
    """Through chunks, shared prefixes, forks, preemptions, aborts, and a recording that begins in
    the middle."""
    dice = random.Random(seed)
    harness = Harness(num_blocks=14, block_size=4, max_num_batched_tokens=16, max_num_seqs=4)
    replay = None
    for number in range(120):
        if number < 80 and dice.random() < 0.3:
            prompt = [number % 3] * dice.randint(1, 30)
            params = {"max_tokens": dice.randint(1, 20), "n": dice.choice([1, 1, 3])}
            harness.add(f"r{number}", prompt, params=params)
        if dice.random() < 0.05 and harness.scheduler.request_ids:
            harness.abort(dice.choice(harness.scheduler.request_ids))
        if number == 20:
            replay = Replay(harness)
        if harness.engine.has_work:
            harness.step()
    harness.run()
    assert replay is not None
    seen = {name for decision in replay.decisions for name in decision}
    assert {"rows", "admitted", "preempted", "ended", "line", "stopped", "states"} <= seen


def decisions_of(harness: Harness) -> list[Json]:
    replay = Replay(harness)
    harness.run()
    return replay.decisions


def test_rows_say_how_much_of_a_prompt_fitted() -> None:
    harness = Harness(num_blocks=64, max_num_batched_tokens=16)
    harness.add("a", [1, 2, 3], params={"max_tokens": 4})
    harness.step()
    harness.add("b", list(range(40)), params={"max_tokens": 2})
    first, *rest = decisions_of(harness)
    assert first["admitted"] == [{"id": "b", "cached": 0}]
    decode, prompt = first["rows"]
    assert (decode["id"], decode["start"], decode["tokens"], decode["sampled"]) == ("a", 3, 1, 1)
    assert prompt == {
        "id": "b", "start": 0, "tokens": 15, "known": 40, "prompt": 40,
        "new_blocks": prompt["new_blocks"],
    }  # fmt: skip
    assert len(prompt["new_blocks"]) == 4
    assert [d["rows"][-1]["start"] for d in rest if d["rows"][-1]["id"] == "b"][:2] == [15, 30]


def test_a_cached_prefix_is_told_with_its_blocks() -> None:
    harness = Harness(block_size=4)
    harness.add("a", list(range(20)))
    harness.run()
    harness.add("b", list(range(20)))
    (first, *_) = decisions_of(harness)
    (admitted,) = first["admitted"]
    assert admitted["cached"] == 16 and len(admitted["blocks"]) == 4
    assert first["states"]["findable"] == sorted(admitted["blocks"])


def test_a_preemption_says_who_for_whom_and_how_much() -> None:
    harness = Harness(num_blocks=8, block_size=4)
    for name in ("a", "b"):
        harness.add(name, [ord(name)] * 14, params={"max_tokens": 10})
    decisions = decisions_of(harness)
    (found,) = [item for decision in decisions for item in decision.get("preempted", [])]
    assert (found["id"], found["for"]) == ("b", "a") and found["blocks"] >= 4
    (step,) = [decision for decision in decisions if "preempted" in decision]
    assert (step["stopped"], step["line"]) == ("preempted", ["b"])
    (again,) = [i for d in decisions for i in d.get("admitted", []) if i.get("resumed")]
    assert again["id"] == "b"


@pytest.mark.parametrize(
    ("options", "prompts", "reason"),
    [
        ({"max_num_seqs": 2}, [3, 3, 3], "max_num_seqs"),
        ({"max_num_batched_tokens": 16}, [16, 3], "tokens"),
        ({"num_blocks": 8}, [20, 20], "blocks"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 16}, [10, 10], "whole_prompt"),
        ({"long_prefill_token_threshold": 4, "max_num_batched_tokens": 64}, [9, 9], "long_prompts"),
        ({}, [3, 3], None),
    ],
)
def test_why_nobody_more_was_admitted(options: Json, prompts: list[int], reason: Any) -> None:
    harness = Harness(**options)
    for number, size in enumerate(prompts):
        harness.add(f"r{number}", [number] * size)
    (first, *_) = decisions_of(harness)
    assert first.get("stopped") == reason
    assert first.get("in_line", 0) == len(first.get("line", [])) == (reason is not None)


def test_a_row_that_fails_and_one_that_was_aborted() -> None:
    def fails(row: ScheduledRequest) -> bool:
        return row.request_id == "bad"

    harness = Harness(executor_options={"row_fails": fails})
    replay = Replay(harness)
    harness.add("bad", [1] * 5)
    harness.add("good", [2] * 5)
    harness.step()
    harness.abort("good")
    harness.add("next", [3] * 5)
    harness.run()
    assert replay.decisions[0]["ended"] == [{"id": "bad", "reason": "error", "blocks": 2}]
    assert replay.decisions[1]["left"] == ["good"]


def test_nobody_records_nothing_is_noted() -> None:
    harness = Harness()
    harness.engine.record(lambda step: None)
    assert harness.blocks._pool.journal is not None
    changes = harness.engine.watch(10, 0, afresh=True)
    assert changes.is_first
    harness.engine.stop_recording()
    assert harness.blocks._pool.journal is not None  # somebody watches still
    harness.engine.unwatch()
    assert harness.blocks._pool.journal is None
