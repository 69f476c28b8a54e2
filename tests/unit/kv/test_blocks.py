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


def num_free_wrong(pool):
    pool.num_free -= 1


def cut_short(pool):
    pool._next[pool._head] = pool._next[pool._next[pool._head]]


def loop(pool):
    first = pool._next[pool._head]
    pool._next[first] = first
    pool.num_free = len(pool.free_blocks())


def back_link(pool):
    pool._previous[pool._next[pool._head]] = 2


def referenced_in_list(pool):
    pool.ref_counts[pool.free_blocks()[0]] = 1


def lost_block(pool):
    pool.ref_counts[pool.alloc()] = 0


def negative_count(pool):
    pool.ref_counts[pool.alloc()] = -1


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (num_free_wrong, "the free list has 4 blocks, num_free 3"),
        (cut_short, "the free list has 3 blocks, num_free 4"),
        (loop, "in the free list twice"),
        (back_link, "links around block"),
        (referenced_in_list, "either unreferenced or in the free list"),
        (lost_block, "either unreferenced or in the free list"),
        (negative_count, "a reference count is negative"),
    ],
)
def test_check_finds_corruption(corrupt, complaint):
    pool = BlockPool(4)
    pool.check()
    corrupt(pool)
    with pytest.raises(AssertionError, match=complaint):
        pool.check()


def test_move_to_front_is_for_unreferenced_blocks():
    pool = BlockPool(1)
    pool.alloc()
    with pytest.raises(AssertionError, match="is referenced"):
        pool.move_to_front(0)
