from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attention import PagedCase, make_placement, make_spec

from octavo.attention import one_token
from octavo.attention.one_token import similar_lengths, sparse_products_work
from octavo.attention.sdpa import SdpaAttention


@given(st.lists(st.integers(1, 5000), max_size=60))
def test_groups_hold_every_row_once_with_little_padding(lens):
    groups = similar_lengths(np.array(lens, dtype=np.int64), 10**6)
    assert sorted(int(row) for group in groups for row in group) == list(range(len(lens)))
    for group in groups:
        members = [lens[row] for row in group]
        allowed = max(one_token.FREE_PADDING, max(members) * one_token.MAX_PADDING + 1)
        assert max(members) - min(members) <= allowed


def test_equal_lengths_are_one_group_in_order():
    (group,) = similar_lengths(np.full(100, 300), 10**6)
    assert group.tolist() == list(range(100))


def test_large_groups_are_split():
    assert [len(group) for group in similar_lengths(np.full(7, 300), 1000)] == [3, 3, 1]
    assert [len(group) for group in similar_lengths(np.full(2, 5000), 1000)] == [1, 1]


@pytest.mark.parametrize("sparse", [True, False])
def test_split_groups_give_the_same_results(monkeypatch, sparse):
    case = PagedCase(make_spec(), make_placement(), [40] * 9)
    backend = SdpaAttention(case.spec, case.placement)
    backend._sparse = sparse
    steps = [[(row, 0, 39) for row in range(9)], [(row, 39, 40) for row in range(9)]]
    whole = case.run(backend, steps)
    monkeypatch.setattr(one_token, "MAX_GROUP_BYTES", 1 << 14)
    assert len(backend.prepare(case.layout(steps[1])).groups) > 1
    for a, b in zip(case.run(backend, steps), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "expected"),
    [
        (torch.float32, torch.float32, True),
        (torch.float32, torch.bfloat16, False),
        (torch.bfloat16, torch.bfloat16, False),
    ],
)
def test_sparse_products_serve_float32_only(dtype, kv_dtype, expected):
    assert sparse_products_work(make_spec(), make_placement(16, dtype, kv_dtype)) is expected


def test_sparse_products_are_not_used_if_torch_lacks_them(monkeypatch):
    def missing(*args, **kwargs):
        raise RuntimeError("not built")

    monkeypatch.setattr(torch.sparse, "sampled_addmm", missing)
    assert not sparse_products_work(make_spec(), make_placement())
