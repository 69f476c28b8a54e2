"""K and V as the compiled CPU kernels want them; attention itself is part of their step.

A block of K holds ``[num_kv_heads, block_size / W, head_dim, W]``: for each head the tokens in
tiles of W, the vector width, and within a tile the same component of W tokens side by side, so that
one load serves W scores. A block of V holds ``[num_kv_heads, block_size, head_dim]``. In 8 bits,
each head of a block of either is followed by the scales of its tokens, in bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.attention.base import AttentionSpec, BatchLayout, LayerCache, Placement
from octavo.core.model_spec import KV_SCALE_BYTES


class NativeMetadata(NamedTuple):
    """A step's layout in the integer types that the kernels read."""

    slots: npt.NDArray[np.int64]  # [num_tokens]
    query_starts: npt.NDArray[np.int64]  # [num_rows + 1]
    context_lens: npt.NDArray[np.int64]  # [num_rows]
    block_tables: npt.NDArray[np.int32]  # [num_rows, max blocks of a row]


class NativeAttention:
    """Owns the layout of blocks; `octavo.models.native` runs them."""

    name = "native"

    def __init__(self, spec: AttentionSpec, placement: Placement, width: int) -> None:
        self.spec = spec
        self.placement = placement
        self._width = width

    def block_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See the head of this file."""
        heads, size, dim = self.spec.num_kv_heads, self.placement.block_size, self.spec.head_dim
        if self.placement.kv_dtype == torch.int8:
            shape = (heads, size * (dim + KV_SCALE_BYTES))
            return shape, shape
        key = (heads, size // self._width, dim, self._width)
        return key, (heads, size, dim)

    def prepare(self, layout: BatchLayout) -> NativeMetadata:
        """Contiguous arrays."""
        return NativeMetadata(
            np.ascontiguousarray(layout.slots, dtype=np.int64),
            np.ascontiguousarray(layout.query_starts, dtype=np.int64),
            np.ascontiguousarray(layout.context_lens, dtype=np.int64),
            np.ascontiguousarray(layout.block_tables, dtype=np.int32),
        )

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, metadata: NativeMetadata
    ) -> Tensor:
        """Not offered: attention runs inside the model's native step."""
        raise NotImplementedError("native attention runs inside NativeDecoder")

    def copy_blocks(self, cache: LayerCache, copies: Sequence[tuple[int, int]]) -> None:
        """See `AttentionBackend.copy_blocks`."""
        for source, target in copies:
            for tensor in cache:
                tensor[target].copy_(tensor[source])
