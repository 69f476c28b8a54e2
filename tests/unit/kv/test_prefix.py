from __future__ import annotations

import pytest

from octavo.kv.prefix import PrefixIndex


def test_first_block_of_a_hash_keeps_it():
    index = PrefixIndex()
    assert index.publish(b"x", 1) and not index.publish(b"x", 2)
    assert index.lookup(b"x") == 1 and index.hash_of == {1: b"x"} and len(index) == 1
    index.forget(2)
    index.forget(1)
    assert index.lookup(b"x") is None and not index.hash_of


def test_a_block_has_one_hash():
    index = PrefixIndex()
    index.publish(b"x", 1)
    with pytest.raises(AssertionError, match="published already"):
        index.publish(b"y", 1)


def test_check_finds_disagreement():
    index = PrefixIndex()
    index.publish(b"x", 1)
    index.check()
    index.hash_of[1] = b"y"
    with pytest.raises(AssertionError, match="disagree"):
        index.check()
