from __future__ import annotations

from octavo.kv.hashing import block_hash, root_hash


def test_a_hash_depends_on_content_order_parent_and_keys():
    base = block_hash(root_hash("a"), [1, 2, 3])
    assert base == block_hash(root_hash("a"), (1, 2, 3))
    others = [
        block_hash(root_hash("a"), [1, 3, 2]),
        block_hash(root_hash("a"), [1, 2]),
        block_hash(root_hash("b"), [1, 2, 3]),
        block_hash(root_hash(), [1, 2, 3]),
        block_hash(base, [1, 2, 3]),
    ]
    assert len({base, *others}) == 6


def test_keys_cannot_run_into_each_other():
    assert root_hash("ab", "c") != root_hash("a", "bc") != root_hash("abc")


def test_the_largest_vocabulary_fits():
    assert len(block_hash(root_hash("\ud800"), [2**32 - 1])) == 32
