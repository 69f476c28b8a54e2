from __future__ import annotations

import pytest

from octavo.kv.blocks import BlockPool


def test_every_block_is_handed_out_once():
    pool = BlockPool(5)
    assert sorted(pool.alloc() for _ in range(5)) == [0, 1, 2, 3, 4]
    assert pool.alloc() is None and pool.num_free == 0
    pool.check()


def test_kept_blocks_are_taken_last_and_oldest_first():
    pool = BlockPool(4)
    a, b, c, d = (pool.alloc() for _ in range(4))
    for block, keep in ((b, True), (a, True), (c, False), (d, False)):
        assert pool.release(block, keep=keep)
    assert [pool.alloc() for _ in range(4)] == [d, c, b, a]


def test_retain_takes_a_block_out_of_the_middle():
    pool = BlockPool(3)
    a, b, c = (pool.alloc() for _ in range(3))
    for block in (a, b, c):
        pool.release(block, keep=True)
    pool.retain(b)
    assert pool.free_blocks() == [a, c]
    pool.retain(b)
    assert not pool.release(b, keep=True) and pool.release(b, keep=True)
    assert pool.free_blocks() == [a, c, b]


def test_releasing_too_often_is_a_bug():
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="once too often"):
        pool.release(0, keep=False)


def test_move_to_front():
    pool = BlockPool(3)
    blocks = [pool.alloc() for _ in range(3)]
    for block in blocks:
        pool.release(block, keep=True)
    pool.move_to_front(blocks[2])
    assert pool.free_blocks() == [blocks[2], blocks[0], blocks[1]]


def break_list(pool):
    pool._next[pool._head] = pool._next[pool._next[pool._head]]


def break_back_link(pool):
    pool._previous[pool._next[pool._head]] = 2


def break_count(pool):
    pool.ref_counts[pool.free_blocks()[0]] = 1


def negative_count(pool):
    taken = pool.alloc()
    pool.ref_counts[taken] = -1


def lost_block(pool):
    pool.ref_counts[pool.alloc()] = 0


def loop(pool):
    first = pool._next[pool._head]
    pool._next[first] = first


@pytest.mark.parametrize(
    "corrupt", [break_list, break_back_link, break_count, negative_count, lost_block, loop]
)
def test_check_finds_corruption(corrupt):
    pool = BlockPool(4)
    pool.check()
    corrupt(pool)
    with pytest.raises(AssertionError):
        pool.check()
