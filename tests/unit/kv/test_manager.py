from __future__ import annotations

import pytest

from octavo.core.params import SamplingParams
from octavo.core.request import Request
from octavo.kv.hashing import block_hash
from octavo.kv.manager import NO_HIT, BlockManager


def manager(num_blocks=8, block_size=4, caching=True):
    return BlockManager(num_blocks, block_size, enable_prefix_caching=caching)


def request(name, tokens, **fields):
    params = SamplingParams(**fields.pop("params", {}))
    return Request(request_id=name, prompt_token_ids=tuple(tokens), params=params, seed=0, **fields)


def compute(blocks, r, num_tokens, hit=NO_HIT):
    delta = blocks.reserve(r, num_tokens, hit)
    assert delta is not None
    r.num_computed_tokens += num_tokens
    blocks.commit(r)
    return delta


def run(blocks, name, tokens, **fields):
    """Computes all tokens of a new request; returns it with its hit."""
    r = request(name, tokens, **fields)
    hit = blocks.match(r)
    r.num_computed_tokens = hit.num_tokens
    compute(blocks, r, r.num_remaining_tokens, hit)
    blocks.check_invariants()
    return r, hit


def test_blocks_come_on_demand():
    blocks = manager()
    r = request("a", range(10))
    assert len(compute(blocks, r, 3).new_block_ids) == 1
    assert compute(blocks, r, 1).new_block_ids == ()
    assert len(compute(blocks, r, 6).new_block_ids) == 2
    assert blocks.stats().num_used_blocks == 3


def test_too_few_blocks_change_nothing():
    blocks = manager(num_blocks=2)
    r = request("a", range(12))
    compute(blocks, r, 4)
    before = blocks.block_ids("a"), blocks.stats()
    assert blocks.reserve(r, 8) is None
    assert (blocks.block_ids("a"), blocks.stats()) == before
    blocks.check_invariants()


@pytest.mark.parametrize(("length", "hit"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8)])
def test_full_blocks_are_shared_and_the_last_token_is_not(length, hit):
    blocks = manager(num_blocks=16)
    run(blocks, "a", range(12))
    _, found = run(blocks, "b", range(length))
    assert found.num_tokens == hit
    assert found.block_ids == blocks.block_ids("a")[: hit // 4]


def test_a_prefix_ends_where_content_differs():
    blocks = manager(num_blocks=16)
    run(blocks, "a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert run(blocks, "b", [1, 2, 3, 4, 5, 0, 7, 8, 9])[1].num_tokens == 4
    assert run(blocks, "c", [0, 2, 3, 4, 5, 6, 7, 8, 9])[1].num_tokens == 0


def test_salts_and_prompt_logprobs_and_the_setting_keep_requests_apart():
    blocks = manager(num_blocks=32)
    run(blocks, "a", range(9), cache_salt="x")
    assert run(blocks, "b", range(9), cache_salt="y")[1].num_tokens == 0
    assert run(blocks, "c", range(9))[1].num_tokens == 0
    assert run(blocks, "d", range(9), cache_salt="x")[1].num_tokens == 8
    wanting = {"prompt_logprobs": 0}
    assert run(blocks, "e", range(9), cache_salt="x", params=wanting)[1].num_tokens == 0
    off = manager(caching=False)
    run(off, "a", range(9))
    off.free("a")
    assert off.stats().num_cached_blocks == 0
    assert run(off, "b", range(9))[1].num_tokens == 0


def test_freed_prefixes_are_found_until_they_are_evicted():
    blocks = manager(num_blocks=4)
    run(blocks, "a", range(9))
    blocks.free("a")
    stats = blocks.stats()
    assert (stats.num_cached_blocks, stats.num_used_blocks, stats.num_free_blocks) == (2, 0, 2)
    _, hit = run(blocks, "b", range(9))
    assert hit.num_tokens == 8
    blocks.free("b")
    run(blocks, "c", range(100, 112))  # needs 3 blocks: evicts the tail of the prefix, not its head
    blocks.free("c")
    assert run(blocks, "d", range(9))[1].num_tokens == 4


def test_eviction_takes_the_least_recently_used():
    blocks = manager(num_blocks=4)
    for name, first in (("a", 0), ("b", 10)):
        run(blocks, name, range(first, first + 8))
    for name in ("a", "b"):
        blocks.free(name)
    blocks.free(run(blocks, "a2", range(5))[0].request_id)  # uses a's head again
    run(blocks, "c", range(50, 58))
    assert run(blocks, "a3", range(5))[1].num_tokens == 4


def test_output_tokens_are_published_too():
    blocks = manager()
    r, _ = run(blocks, "a", range(3))
    for token in (3, 4, 5, 6):
        r.output_token_ids.append(token)
        compute(blocks, r, 1)
    assert run(blocks, "b", range(8))[1].num_tokens == 4


def test_the_second_of_two_equal_blocks_is_not_published():
    blocks = manager()
    one, two = request("a", range(8)), request("b", range(8))
    for r in (one, two):
        assert blocks.reserve(r, 8) is not None
    for r in (one, two):
        r.num_computed_tokens = 8
        blocks.commit(r)
    blocks.check_invariants()
    assert run(blocks, "c", range(9))[1].block_ids == blocks.block_ids("a")


def test_fork_shares_everything_and_writes_copy_first():
    blocks = manager()
    parent, _ = run(blocks, "a", range(6))
    child = request("b", range(6))
    blocks.fork(parent, child)
    assert child.num_computed_tokens == 5
    assert blocks.block_ids("b") == blocks.block_ids("a")
    assert blocks.stats().num_used_blocks == 2
    delta = compute(blocks, child, 1)
    ((name, index, source, target),) = delta.copies
    assert (name, index, source) == ("b", 1, blocks.block_ids("a")[1])
    assert blocks.block_ids("b") == (blocks.block_ids("a")[0], target)
    assert compute(blocks, parent, 1).copies == (), "the parent is alone with its block again"
    blocks.check_invariants()


def test_a_published_block_is_copied_before_it_changes():
    blocks = manager()
    parent, _ = run(blocks, "a", range(8))
    child = request("b", range(8))
    blocks.fork(parent, child)
    blocks.free("a")
    delta = compute(blocks, child, 1)
    assert len(delta.copies) == 1
    blocks.check_invariants()
    assert run(blocks, "c", range(9))[1].num_tokens == 8


def test_trim_gives_back_blocks_beyond_the_computed_tokens():
    blocks = manager()
    r = request("a", range(3))
    blocks.reserve(r, 10)
    r.num_computed_tokens = 3
    blocks.trim(r)
    assert len(blocks.block_ids("a")) == 1
    blocks.check_invariants()


def test_reset_forgets_all():
    blocks = manager()
    run(blocks, "a", range(9))
    run(blocks, "b", range(50, 59))
    blocks.free("b")
    blocks.reset_prefix_cache()
    blocks.check_invariants()
    assert blocks.stats().num_cached_blocks == 0
    assert run(blocks, "c", range(9))[1].num_tokens == 0


def test_misuse_is_a_bug():
    blocks = manager()
    parent, _ = run(blocks, "a", range(4))
    with pytest.raises(AssertionError, match="holds blocks already"):
        blocks.match(parent)
    with pytest.raises(AssertionError, match="holds blocks already"):
        blocks.fork(parent, parent)


def test_a_hit_is_only_taken_with_the_reservation():
    blocks = manager()
    run(blocks, "a", range(9))
    blocks.free("a")
    before = blocks.stats()
    r = request("b", range(9))
    hit = blocks.match(r)
    assert hit.num_tokens == 8 and blocks.stats() == before and blocks.block_ids("b") == ()
    r.num_computed_tokens = 8
    delta = blocks.reserve(r, 1, hit)
    assert blocks.block_ids("b") == hit.block_ids + delta.new_block_ids
    assert blocks.stats().num_cached_blocks == 0
    blocks.check_invariants()


def test_a_hit_that_leaves_too_few_blocks_changes_nothing():
    blocks = manager(num_blocks=4)
    run(blocks, "a", range(8))
    blocks.free("a")
    r = request("b", range(20))
    hit = blocks.match(r)
    r.num_computed_tokens = hit.num_tokens
    before, free = blocks.stats(), blocks._pool.free_blocks()
    # Four blocks are free, but two of them are those of the hit.
    assert blocks.reserve(r, 12, hit) is None
    assert blocks.stats() == before and blocks._pool.free_blocks() == free
    assert blocks.reserve(r, 8, hit) is not None
    blocks.check_invariants()


def test_a_hit_that_is_gone_is_a_bug():
    blocks = manager()
    run(blocks, "a", range(9))
    r = request("b", range(9))
    hit = blocks.match(r)
    with pytest.raises(AssertionError, match="only what was matched"):
        blocks.reserve(r, 1, hit)
    r.num_computed_tokens = 8
    blocks.reset_prefix_cache()
    with pytest.raises(AssertionError, match="of the hit is gone"):
        blocks.reserve(r, 1, hit)


def count_hashes(monkeypatch):
    hashed = []

    def counting(parent, tokens):
        hashed.append(tuple(tokens))
        return block_hash(parent, tokens)

    monkeypatch.setattr("octavo.kv.manager.block_hash", counting)
    return hashed


def test_a_request_that_waits_is_hashed_once(monkeypatch):
    blocks = manager(num_blocks=3)
    run(blocks, "a", range(9))
    r = request("b", range(12))
    hashed = count_hashes(monkeypatch)
    for _ in range(5):
        hit = blocks.match(r)
        r.num_computed_tokens = hit.num_tokens
        assert blocks.reserve(r, 4, hit) is None
        r.num_computed_tokens = 0
    assert hashed == [(0, 1, 2, 3), (4, 5, 6, 7)]
    blocks.free("a")
    r.num_computed_tokens = 8
    assert blocks.reserve(r, 4, blocks.match(r)) is not None


def test_two_that_wait_in_turn_do_not_mix_their_hashes():
    blocks = manager(num_blocks=16)
    run(blocks, "a", range(9))
    run(blocks, "b", range(100, 109), cache_salt="x")
    one, two = request("c", range(9)), request("d", range(100, 109), cache_salt="x")
    for _ in range(3):
        assert blocks.match(one).block_ids == blocks.block_ids("a")[:2]
        assert blocks.match(two).block_ids == blocks.block_ids("b")[:2]


def test_each_block_of_a_request_is_hashed_once(monkeypatch):
    blocks = manager(num_blocks=16)
    hashed = count_hashes(monkeypatch)
    r = request("a", range(6))
    compute(blocks, r, 6)
    for token in range(6, 20):
        r.output_token_ids.append(token)
        compute(blocks, r, 1)
    assert hashed == [tuple(range(at, at + 4)) for at in (0, 4, 8, 12, 16)]


def test_usage_is_a_share():
    blocks = manager(num_blocks=8)
    run(blocks, "a", range(6))
    assert blocks.stats().usage == 0.25


def count_up(blocks):
    blocks._pool.ref_counts[blocks.block_ids("a")[0]] += 1


def table_twice(blocks):
    table = blocks._tables["a"]
    table.blocks[1] = table.blocks[0]


def table_foreign(blocks):
    blocks._tables["a"].blocks[2] = blocks._pool.free_blocks()[0]


def table_too_short(blocks):
    table = blocks._tables["a"]
    table.num_published = 4
    table.hashes += [b"x", b"y"]


def hash_missing(blocks):
    blocks._tables["a"].hashes.pop()


def other_content(blocks):
    blocks._tables["a"].hashes[1] = b"x"


def wrong_cached_count(blocks):
    blocks._num_cached += 1


def index_broken(blocks):
    blocks._index._block_of.clear()


def pool_broken(blocks):
    blocks._pool.num_free += 1


def cached_first(blocks):
    blocks.free("a")
    cached = next(iter(blocks._index.hash_of))
    blocks._pool.move_to_front(cached)


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (count_up, "has reference count 2, but 1 tables name it"),
        (table_twice, "the block table of a names a block twice"),
        (table_foreign, "has reference count 1, but 0 tables name it"),
        (table_too_short, "a published 4 blocks, hashed 4, and holds 3"),
        (hash_missing, "a published 2 blocks, hashed 1, and holds 3"),
        (other_content, "of a is published as another"),
        (wrong_cached_count, "0 blocks are cached, but 1 are counted"),
        (index_broken, "hash-to-block and block-to-hash disagree"),
        (pool_broken, "the free list has 5 blocks, num_free 6"),
        (cached_first, "would be taken before one that holds nothing"),
    ],
)
def test_check_invariants_finds_corruption(corrupt, complaint):
    blocks = manager()
    run(blocks, "a", range(9))
    blocks.check_invariants()
    corrupt(blocks)
    with pytest.raises(AssertionError, match=complaint):
        blocks.check_invariants()
