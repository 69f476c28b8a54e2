"""What the engine says of itself agrees with its own books, whatever it is doing."""

from __future__ import annotations

import os
import random
from array import array
from collections import Counter

import pytest
from support.engines import Harness

from octavo.core.errors import RequestError
from octavo.core.request import RequestState
from octavo.metrics.snapshot import BLOCK_STATES, EngineSnapshot


def numbers(code: str, raw: bytes) -> list[int]:
    return array(code, raw).tolist()  # these tests run on little-endian machines


def check(h: Harness, snapshot: EngineSnapshot) -> None:
    """Every number, worked out again from the scheduler's and the block manager's own books."""
    h.scheduler.check_invariants()
    size, blocks = h.blocks.block_size, snapshot.blocks
    assert blocks is not None
    assert snapshot.cache == h.blocks.stats()
    assert (snapshot.num_running, snapshot.num_waiting) == (
        h.scheduler.num_running,
        h.scheduler.num_waiting,
    )
    known = {request.request_id: request for request in h.scheduler.requests}
    assert sorted(row.id for row in snapshot.rows) == sorted(known)
    running = [row for row in snapshot.rows if row.state == "running"]
    assert list(snapshot.rows[: len(running)]) == running, "running ones come first"
    fills: dict[int, int] = {}
    holders: dict[int, list[str]] = {}
    for row in snapshot.rows:
        request, table = known[row.id], h.blocks.block_ids(row.id)
        assert (row.state == "running") == (request.state is RequestState.RUNNING)
        assert row.num_computed_tokens == request.num_computed_tokens
        assert row.num_blocks == len(table)
        assert row.num_wasted_slots == len(table) * size - row.num_computed_tokens >= 0
        assert row.num_generated_tokens == len(request.output_token_ids)
        assert (row.first_token_s is None) == (not request.output_token_ids)
        if row.first_token_s is not None:
            assert row.queue_s is not None and 0 < row.queue_s < row.first_token_s < row.age_s
        for index, block in enumerate(table):
            fill = min(size, max(0, row.num_computed_tokens - index * size))
            fills[block] = max(fill, fills.get(block, 0))
            holders.setdefault(block, []).append(row.id)
    assert snapshot.num_wasted_slots == sum(size - fill for fill in fills.values())
    assert snapshot.num_shared_blocks == sum(len(names) > 1 for names in holders.values())
    states = [BLOCK_STATES[code] for code in blocks.states]
    counts = Counter(state.partition(",")[0] for state in states)
    assert counts["used"] == snapshot.cache.num_used_blocks == len(holders)
    assert counts["cached"] == snapshot.cache.num_cached_blocks
    assert counts["free"] == snapshot.cache.num_free_blocks
    assert numbers("H", blocks.ref_counts) == list(h.blocks.ref_counts)
    owners = numbers("i", blocks.owners)
    for block, state in enumerate(states):
        if block in holders:
            assert blocks.owner_ids[owners[block]] == holders[block][0]
            assert blocks.num_tokens[block] == fills[block]
        else:
            assert owners[block] == -1
            assert blocks.num_tokens[block] == (size if state == "cached" else 0)


@pytest.mark.parametrize("seed", range(40))
def test_it_agrees_with_the_books_under_any_load(seed: int) -> None:
    rng = random.Random(seed)
    h = Harness(
        num_blocks=rng.choice([8, 20, 60]),
        block_size=rng.choice([1, 4, 8]),
        max_model_len=60,
        caching=rng.random() < 0.8,
        max_num_seqs=rng.choice([2, 8]),
        max_num_batched_tokens=rng.choice([8, 64]),
        policy=rng.choice(["fcfs", "priority"]),
    )
    everything = range(h.blocks.num_blocks)
    shared = [rng.randrange(50) for _ in range(30)]
    for number in range(25):
        prompt = shared[: rng.randrange(20)] + [rng.randrange(50) for _ in range(1, 12)]
        params = {"max_tokens": rng.randrange(1, 12), "n": rng.choice([1, 1, 3])}
        try:
            h.add(f"r{number}", prompt, params=params, priority=rng.randrange(3))
        except RequestError:
            continue
        for _ in range(rng.choice([0, 1, 3])):
            h.step()
        if rng.random() < 0.1:
            h.abort(f"r{rng.randrange(number + 1)}")
        snapshot = h.engine.snapshot(1000, everything)
        check(h, snapshot)
    h.run()
    check(h, h.engine.snapshot(1000, everything))


def test_rows_are_as_many_as_asked_for_and_totals_are_whole() -> None:
    h = Harness(max_num_seqs=2)
    for number in range(6):
        h.add(f"r{number}", [number] * 6)
    h.step()
    snapshot = h.engine.snapshot(3, None)
    assert [(row.id, row.state) for row in snapshot.rows] == [
        ("r0", "running"),
        ("r1", "running"),
        ("r2", "waiting"),
    ]
    assert (snapshot.num_running, snapshot.num_waiting) == (2, 4)
    assert snapshot.blocks is None
    assert h.engine.snapshot(0, None).rows == ()


def test_a_request_row_by_row() -> None:
    h = Harness(block_size=4, max_num_seqs=1)
    h.add("a", [1] * 9, params={"max_tokens": 5}, priority=3)
    (row,) = h.engine.snapshot(9, None).rows
    assert (row.state, row.num_cached_tokens, row.num_blocks, row.queue_s) == (
        "waiting",
        None,
        0,
        None,
    )
    h.step()
    h.step()
    (row,) = h.engine.snapshot(9, None).rows
    assert (row.priority, row.num_prompt_tokens, row.num_cached_tokens) == (3, 9, 0)
    assert (row.num_computed_tokens, row.num_generated_tokens) == (10, 2)
    assert (row.num_blocks, row.num_wasted_slots) == (3, 2)
    assert row.inter_token_s is not None and row.inter_token_s > 0


def test_a_range_of_blocks() -> None:
    h = Harness(block_size=4, num_blocks=10)
    h.add("a", [1] * 9)
    h.step()
    table = h.blocks.block_ids("a")
    found = h.engine.snapshot(0, range(table[1], 10)).blocks
    assert found is not None and found.first == table[1]
    assert len(found.states) == len(found.num_tokens) == 10 - table[1]
    assert found.num_tokens[0] == 4 and found.num_tokens[1] == 1
    empty = h.engine.snapshot(0, range(10, 10)).blocks
    assert empty is not None and empty.states == b""


def test_the_process() -> None:
    process = Harness().engine.snapshot(0, None).process
    assert process.pid == os.getpid()
    assert process.resident_bytes is not None and process.resident_bytes > 1 << 20
    assert process.cpu_s > 0


def test_first_admissions_resumes_and_forks_are_counted_apart() -> None:
    h = Harness(block_size=4, num_blocks=8, max_num_seqs=4)
    h.add("a", [1] * 8, params={"max_tokens": 12, "n": 2})
    h.add("b", [2] * 8, params={"max_tokens": 12})
    totals = Counter[str]()
    while h.engine.has_work:
        stats = h.step()
        for name in ("prefix_queries", "prefix_hits", "resume_queries", "forked_tokens"):
            totals[name] += getattr(stats, f"num_{name}")
        totals["preemptions"] += stats.num_preemptions
    assert totals["prefix_queries"] == 16, "a and b once each; their sibling forks"
    assert totals["prefix_hits"] == 0
    assert totals["forked_tokens"] == 7
    assert totals["preemptions"] > 0 and totals["resume_queries"] > 8


@pytest.mark.parametrize(("caching", "scoring"), [(False, None), (True, 0)])
def test_what_is_not_looked_up_is_no_query(caching: bool, scoring: int | None) -> None:
    h = Harness(caching=caching)
    h.add("a", [1] * 8, params={"max_tokens": 1, "prompt_logprobs": scoring})
    assert h.step().num_prefix_queries == 0
