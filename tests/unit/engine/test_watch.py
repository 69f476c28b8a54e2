"""Changes put together are what the engine says when asked for everything."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from typing import Any

import pytest
from support.engines import Harness

from octavo.core.errors import RequestError
from octavo.metrics.snapshot import EngineChanges


class Reader:
    """Keeps blocks and tables by what it is told."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.tables: dict[str, list[int]] = {}
        self.blocks: list[tuple[int, int, int]] = []
        self.hashes: dict[int, bytes] = {}
        self.num_told = 0

    def take(self, changes: EngineChanges) -> None:
        if changes.is_first:
            self.tables, self.blocks, self.hashes = {}, [(0, 0, 0)] * self.num_blocks, {}
        for table in changes.tables:
            self.tables.setdefault(table.request_id, [])[table.first :] = table.blocks
        running = {row.id for row in changes.snapshot.rows if row.state == "running"}
        self.tables = {name: ids for name, ids in self.tables.items() if name in running}
        told = changes.blocks
        ids, counts = array("I", told.ids), array("H", told.ref_counts)
        assert list(ids) == sorted(set(ids))
        for k, block in enumerate(ids):
            self.blocks[block] = told.states[k], told.num_tokens[k], counts[k]
            self.hashes[block] = told.hashes[4 * k : 4 * k + 4]
        self.num_told = len(ids)


def harness(rng: random.Random, **options: Any) -> Harness:
    return Harness(
        num_blocks=rng.choice([8, 20, 60]),
        block_size=rng.choice([1, 4, 8]),
        max_model_len=60,
        caching=rng.random() < 0.8,
        max_num_seqs=rng.choice([2, 8]),
        max_num_batched_tokens=rng.choice([8, 64]),
        **options,
    )


def check(h: Harness, reader: Reader) -> None:
    """The reader knows what there is to know."""
    blocks = h.engine.snapshot(1000, range(h.blocks.num_blocks)).blocks
    assert blocks is not None
    counts = array("H", blocks.ref_counts)
    assert reader.blocks == list(zip(blocks.states, blocks.num_tokens, counts, strict=True))
    for block, digest in reader.hashes.items():
        assert h.blocks.published.get(block, bytes(4))[:4] == digest
    held = {
        request.request_id: h.blocks.block_ids(request.request_id)
        for request in h.scheduler.requests
    }
    assert reader.tables == {name: list(ids) for name, ids in held.items() if ids}


@pytest.mark.parametrize("seed", range(40))
def test_changes_add_up_under_any_load(seed: int) -> None:
    rng = random.Random(seed)
    h = harness(rng)
    reader = Reader(h.blocks.num_blocks)
    shared = [rng.randrange(50) for _ in range(30)]
    for number in range(25):
        prompt = shared[: rng.randrange(20)] + [rng.randrange(50) for _ in range(1, 12)]
        params = {"max_tokens": rng.randrange(1, 12), "n": rng.choice([1, 1, 3])}
        try:
            h.add(f"r{number}", prompt, params=params)
        except RequestError:
            continue
        for _ in range(rng.choice([0, 1, 3])):
            h.step()
        if rng.random() < 0.1:
            h.abort(f"r{rng.randrange(number + 1)}")
        if rng.random() < 0.1:
            h.engine.reset_prefix_cache()
        if rng.random() < 0.1:
            h.engine.unwatch()
        if rng.random() < 0.7:
            reader.take(h.engine.watch(1000, 0, afresh=rng.random() < 0.05))
            check(h, reader)
    h.run()
    reader.take(h.engine.watch(1000, 0, afresh=False))
    check(h, reader)
    assert not reader.tables


def test_only_what_has_changed_is_told() -> None:
    h = Harness(block_size=4)
    h.add("a", [1] * 9, params={"max_tokens": 20})
    h.step()
    first = h.engine.watch(10, 0, afresh=False)
    assert first.is_first and len(array("I", first.blocks.ids)) == 3
    h.step()
    second = h.engine.watch(10, 0, afresh=False)
    assert not second.is_first
    assert list(array("I", second.blocks.ids)) == [h.blocks.block_ids("a")[2]]
    assert second.tables == ()
    assert array("I", h.engine.watch(10, 0, afresh=False).blocks.ids) == array("I")


def test_nobody_watching_leaves_no_trace() -> None:
    h = Harness(block_size=4)
    h.engine.watch(10, 0, afresh=False)
    assert h.blocks._pool.journal is not None
    h.engine.unwatch()
    h.engine.unwatch()
    h.add("a", [1] * 9)
    h.run()
    assert h.blocks._pool.journal is None


def test_blocks_know_when_they_changed_hands() -> None:
    h = Harness(block_size=4)
    h.add("a", [1] * 8, params={"max_tokens": 2})
    h.step()
    (_, first) = array("d", h.engine.watch(10, 0, afresh=True).blocks.changed_s)
    h.run()
    changes = h.engine.watch(10, 0, afresh=False)
    states = list(changes.blocks.states)
    assert states.count(1) == 2, "two full blocks stay findable"
    assert all(at > first for at in array("d", changes.blocks.changed_s))
    assert changes.now_s > max(array("d", changes.blocks.changed_s))


def test_text_is_told_only_to_those_who_ask() -> None:
    h = Harness()
    h.add("a", [7, 8, 9, 10], params={"max_tokens": 9})
    for _ in range(4):
        h.step()
    (row,) = h.engine.watch(10, 0, afresh=False).snapshot.rows
    assert (row.prompt_head, row.output_tail) == ((), ())
    (row,) = h.engine.watch(10, 2, afresh=False).snapshot.rows
    assert row.prompt_head == (7, 8) and row.output_tail == tuple(h.outputs["a"][-2:])


def test_what_contiguous_allocation_would_hold() -> None:
    h = Harness(max_model_len=50)
    h.add("a", [1] * 10, params={"max_tokens": 9})
    h.add("b", [2] * 10, params={"max_tokens": 99})
    h.add("c", [3] * 10, params={"max_tokens": None})
    h.step()
    assert h.engine.watch(10, 0, afresh=False).snapshot.num_contiguous_slots == 19 + 50 + 50


def test_blocks_with_guesses_are_marked_for_one_step() -> None:
    h = Harness(block_size=4)
    h.add("a", [1] * 14, params={"max_tokens": 40})
    h.step()
    h.step()
    reader, table = Reader(h.blocks.num_blocks), h.blocks.block_ids("a")
    plan = h.engine._last_plan
    assert plan is not None and len(table) == 4
    # Guesses at positions 11 to 13, and one (16) in a block that has been given back since.
    row = plan.rows[0]._replace(start=10, num_new_tokens=7, num_draft_tokens=6)
    h.engine._last_plan = replace(plan, rows=(row,))
    reader.take(h.engine.watch(10, 0, afresh=False))
    check(h, reader)
    assert [reader.blocks[block][0] == 4 for block in table] == [False, False, True, True]
    h.step()
    reader.take(h.engine.watch(10, 0, afresh=False))
    check(h, reader)
    assert not any(state == 4 for state, _, _ in reader.blocks)
