from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention import PagedCase, make_placement, make_spec

from octavo.attention.reference import ReferenceAttention
from octavo.attention.sdpa import SdpaAttention

SPECS = {
    "grouped": make_spec(),
    "one head each": make_spec(3, 3, 8),
    "one KV head": make_spec(6, 1, 8),
    "window": make_spec(window=11),
    "window of one": make_spec(window=1),
    "window of a block": make_spec(window=16),
}


def sdpa(case: PagedCase, *, sparse: bool = True) -> SdpaAttention:
    backend = SdpaAttention(case.spec, case.placement)
    if not sparse:
        backend._sparse = False
    return backend


def assert_rows_close(ours, expected, tolerance=2e-5):
    for row, (a, b) in enumerate(zip(ours, expected, strict=True)):
        torch.testing.assert_close(
            a, b, rtol=tolerance, atol=tolerance, msg=lambda text, row=row: f"row {row}: {text}"
        )


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "gathered"])
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_equals_reference_in_mixed_steps(spec, sparse, block_size):
    case = PagedCase(spec, make_placement(block_size), [1, 2, 15, 16, 17, 33, 70])
    backend = sdpa(case, sparse=sparse)
    reference = case.run(ReferenceAttention(spec, case.placement), [case.whole()])
    assert_rows_close(case.run(backend, [case.whole()]), reference)
    for seed in range(2):
        assert_rows_close(case.run(backend, case.random_steps(seed)), reference)


@settings(max_examples=40, deadline=None)
@given(
    lens=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    window=st.one_of(st.none(), st.integers(1, 40)),
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 1000),
)
def test_equals_reference_for_any_batch(lens, window, kv_heads, group, seed):
    spec = make_spec(kv_heads * group, kv_heads, 8, window=window)
    case = PagedCase(spec, make_placement(8), lens, seed)
    reference = case.run(ReferenceAttention(spec, case.placement), [case.whole()])
    assert_rows_close(case.run(sdpa(case), case.random_steps(seed)), reference)


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_16_bit_types_are_close_to_the_reference(dtype, kv_dtype):
    case = PagedCase(make_spec(), make_placement(16, dtype, kv_dtype), [1, 17, 40])
    reference = case.run(ReferenceAttention(case.spec, case.placement), [case.whole()])
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for steps in ([case.whole()], case.random_steps(0)):
        ours = case.run(sdpa(case), steps)
        assert all(row.dtype == dtype for row in ours)
        assert_rows_close(ours, reference, tolerance)


@pytest.mark.parametrize("window", [None, 300])
def test_long_piece_is_cut_by_its_own_length(window):
    # 700 new tokens after 500 make several pieces, whose masks must line up.
    case = PagedCase(make_spec(2, 1, 8, window=window), make_placement(), [1200])
    reference = case.run(ReferenceAttention(case.spec, case.placement), [case.whole()])
    assert_rows_close(case.run(sdpa(case), [[(0, 0, 500)], [(0, 500, 1200)]]), reference)
    assert_rows_close(case.run(sdpa(case), [case.whole()]), reference)


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "gathered"])
def test_one_token_rows_do_not_depend_on_their_neighbours(sparse):
    lens = [3, 300, 16, 40, 290, 120, 65, 64]
    case = PagedCase(make_spec(9, 3, 64), make_placement(), lens)
    backend = sdpa(case, sparse=sparse)
    cache = case.empty_cache(backend)
    case.run(backend, [[(row, 0, n - 1) for row, n in enumerate(lens)]], cache)
    last = [(row, n - 1, n) for row, n in enumerate(lens)]
    together = case.run(backend, [last], cache)
    order = np.random.default_rng(0).permutation(len(lens))
    shuffled = case.run(backend, [[last[row] for row in order]], cache)
    for row, span in enumerate(last):
        alone = case.run(backend, [[span]], cache)[row]
        assert torch.equal(together[row], shuffled[row])
        if sparse:
            assert torch.equal(together[row], alone)
        else:
            torch.testing.assert_close(together[row], alone, rtol=1e-5, atol=1e-6)


def test_not_a_number_stays_in_its_row():
    lens = [40, 40, 33]
    case = PagedCase(make_spec(), make_placement(), lens)
    backend = sdpa(case)
    steps = [
        [(row, 0, n - 1) for row, n in enumerate(lens)],
        [(0, 39, 40), (1, 39, 40), (2, 32, 33)],
    ]
    healthy = case.run(backend, steps)
    case.qkv[1][1][5] = torch.nan
    sick = case.run(backend, steps)
    assert sick[1][39].isnan().all()
    for row in (0, 2):
        assert torch.equal(sick[row], healthy[row])


def test_copies_follow_one_another():
    case = PagedCase(make_spec(), make_placement(), [20])
    backend = sdpa(case)
    cache = case.empty_cache(backend)
    for tensor in cache:
        tensor.copy_(torch.arange(case.num_blocks).view(-1, 1, 1, 1))
    backend.copy_blocks(cache, [(0, 1), (1, 2), (4, 0)])
    for tensor in cache:
        assert [int(block.unique()) for block in tensor] == [4, 0, 0, 3, 4]
