"""Attention as quick as plain torch makes it, on any device: the default back-end.

Rows that compute one token go together (`one_token`), rows that compute more go one by one
(`chunks`); nothing loops over tokens. A block holds ``[block_size, num_kv_heads, head_dim]``, for
K and V alike, so that the K of one token is contiguous and a slot is a row of a flat view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.attention.base import AttentionSpec, BatchLayout, LayerCache, Placement
from octavo.attention.chunks import Chunk, DistanceMask, attend_chunk, prepare_chunks
from octavo.attention.one_token import Group, prepare_groups, sparse_products_work


class SdpaMetadata(NamedTuple):
    """One step, ready for every layer."""

    slots: Tensor  # [num_tokens]
    groups: list[Group]
    chunks: list[Chunk]


class SdpaAttention:
    """`scaled_dot_product_attention` and sparse products over slots of the cache."""

    name = "sdpa"

    def __init__(self, spec: AttentionSpec, placement: Placement) -> None:
        self.spec = spec
        self.placement = placement
        self._sparse = sparse_products_work(spec, placement)
        self._mask = DistanceMask(spec.sliding_window, placement)

    def block_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """``[block_size, num_kv_heads, head_dim]`` for both."""
        shape = (self.placement.block_size, self.spec.num_kv_heads, self.spec.head_dim)
        return shape, shape

    def prepare(self, layout: BatchLayout) -> SdpaMetadata:
        """Groups the rows and looks up their slots."""
        return SdpaMetadata(
            slots=torch.from_numpy(layout.slots).to(self.placement.device),
            groups=prepare_groups(layout, self.spec, self.placement, sparse=self._sparse),
            chunks=prepare_chunks(layout, self.spec, self.placement),
        )

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, metadata: SdpaMetadata
    ) -> Tensor:
        """See `AttentionBackend.forward`."""
        for tensor, new in ((cache.key, k), (cache.value, v)):
            flat = tensor.view(-1, *tensor.shape[2:])
            flat.index_copy_(0, metadata.slots, new.to(tensor.dtype))
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for group in metadata.groups:
            rows = q.index_select(0, group.tokens)
            out.index_copy_(0, group.tokens, group.attend(rows, cache, self.spec))
        for chunk in metadata.chunks:
            out[chunk.first : chunk.end] = attend_chunk(
                chunk, (q, k, v), cache, self.spec, self._mask
            )
        return out

    def copy_blocks(self, cache: LayerCache, copies: Sequence[tuple[int, int]]) -> None:
        """See `AttentionBackend.copy_blocks`."""
        for source, target in copies:
            for tensor in cache:
                tensor[target].copy_(tensor[source])
