from __future__ import annotations

import pytest
import torch
from support.attention import make_placement

from octavo.attention.chunks import MAX_MASK_ELEMENTS, Chunk, DistanceMask


@pytest.mark.parametrize("window", [None, 1, 4, 5000])
@pytest.mark.parametrize(("queries", "keys_before"), [(1, 0), (3, 0), (8, 5), (5, 1500)])
def test_mask_hides_later_and_too_early_keys(window, queries, keys_before):
    mask = DistanceMask(window, make_placement())
    mask.cut(2, 3, piece=8)
    cut = mask.cut(queries, keys_before, piece=8)
    assert cut.shape == (queries, keys_before + queries)
    for query in range(queries):
        for key in range(keys_before + queries):
            distance = query + keys_before - key
            visible = distance >= 0 and (window is None or distance < window)
            assert cut[query, key] == (0 if visible else -torch.inf)


def test_pieces_shrink_as_the_context_grows():
    def piece(context: int) -> int:
        return Chunk(first=0, end=256, start=context, slots=None, first_key=0).piece_tokens

    assert piece(0) == 256
    assert piece(20_000) == 64
    assert piece(10**6) == 16
    assert piece(100_000) * 100_000 <= MAX_MASK_ELEMENTS
