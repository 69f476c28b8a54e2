from __future__ import annotations

import pytest
import torch
from support.attention import PagedCase, dense, make_placement, make_spec

from octavo.attention.reference import ReferenceAttention

LENS = [1, 5, 16, 17, 40]


@pytest.mark.parametrize(
    "spec",
    [
        make_spec(),
        make_spec(3, 3),
        make_spec(6, 1),
        make_spec(window=1),
        make_spec(window=7),
        make_spec(soft_cap=0.5),
    ],
)
@pytest.mark.parametrize("block_size", [8, 16])
def test_equals_dense_attention(spec, block_size):
    case = PagedCase(spec, make_placement(block_size), LENS)
    backend = ReferenceAttention(case.spec, case.placement)
    for steps in ([case.whole()], case.random_steps(1)):
        for ours, expected in zip(case.run(backend, steps), dense(case), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_16_bit_cache_is_what_is_read_back():
    case = PagedCase(make_spec(), make_placement(kv_dtype=torch.bfloat16), LENS)
    backend = ReferenceAttention(case.spec, case.placement)
    for ours, expected in zip(case.run(backend, [case.whole()]), dense(case), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_copied_blocks_are_read_through_the_new_table():
    case = PagedCase(make_spec(), make_placement(), [20])
    backend = ReferenceAttention(case.spec, case.placement)
    cache = case.empty_cache(backend)
    whole = case.run(backend, [[(0, 0, 19)], [(0, 19, 20)]])[0]
    case.run(backend, [[(0, 0, 19)]], cache)
    source = int(case.tables[0, 1])
    spare = next(block for block in range(case.num_blocks) if block not in case.tables[0])
    backend.copy_blocks(cache, [(source, spare)])
    for tensor in cache:
        tensor[source] = torch.nan
    case.tables[0, 1] = spare
    assert torch.equal(case.run(backend, [[(0, 19, 20)]], cache)[0], whole[19:])
