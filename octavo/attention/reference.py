"""Attention spelled out, one row and one new token at a time: the oracle of every other back-end.

Works on any device, in float32 inside, with every feature of `AttentionSpec`. A block holds
``[block_size, num_kv_heads, head_dim]``, for K and V alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo.attention.base import AttentionSpec, BatchLayout, LayerCache, Placement, row_slots


class ReferenceRow(NamedTuple):
    """One row of a step."""

    first_token: int
    """Index of its first new token among the packed tokens."""
    start: int
    """Position of that token in the row's context."""
    slots: Tensor  # [context_len] all tokens of the context


class ReferenceMetadata(NamedTuple):
    """The rows of a step, and the slots of its new tokens."""

    slots: Tensor  # [num_tokens]
    rows: list[ReferenceRow]


class ReferenceAttention:
    """Slow, obvious, exact."""

    name = "reference"

    def __init__(self, spec: AttentionSpec, placement: Placement) -> None:
        self.spec = spec
        self.placement = placement

    def block_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """``[block_size, num_kv_heads, head_dim]`` for both."""
        shape = (self.placement.block_size, self.spec.num_kv_heads, self.spec.head_dim)
        return shape, shape

    def prepare(self, layout: BatchLayout) -> ReferenceMetadata:
        """Looks up every slot of every row."""
        device = self.placement.device
        rows = []
        for row, context_len in enumerate(layout.context_lens.tolist()):
            first, end = layout.query_starts[row : row + 2].tolist()
            slots = row_slots(
                layout.block_tables[row], np.arange(context_len), self.placement.block_size
            )
            rows.append(
                ReferenceRow(first, context_len - (end - first), torch.from_numpy(slots).to(device))
            )
        return ReferenceMetadata(torch.from_numpy(layout.slots).to(device), rows)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, metadata: ReferenceMetadata
    ) -> Tensor:
        """See `AttentionBackend.forward`."""
        keys, values = cache.key.flatten(0, 1), cache.value.flatten(0, 1)
        keys[metadata.slots] = k.to(keys.dtype)
        values[metadata.slots] = v.to(values.dtype)
        out = torch.empty_like(q)
        for row, following in zip(metadata.rows, [*metadata.rows[1:], None], strict=True):
            end = following.first_token if following else len(q)
            row_keys, row_values = keys[row.slots].float(), values[row.slots].float()
            for token in range(row.first_token, end):
                position = row.start + token - row.first_token
                out[token] = self._attend(q[token].float(), row_keys, row_values, position)
        return out

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, position: int) -> Tensor:
        """One token; ``q [num_heads, head_dim]``, ``keys [context, num_kv_heads, head_dim]``."""
        window = self.spec.sliding_window
        first = 0 if window is None else max(0, position + 1 - window)
        keys = keys[first : position + 1].repeat_interleave(self.spec.group, dim=1)
        values = values[first : position + 1].repeat_interleave(self.spec.group, dim=1)
        scores = torch.einsum("hd,thd->ht", q, keys) * self.spec.scale
        if self.spec.soft_cap is not None:
            scores = torch.tanh(scores / self.spec.soft_cap) * self.spec.soft_cap
        return torch.einsum("ht,thd->hd", torch.softmax(scores, dim=-1), values)

    def copy_blocks(self, cache: LayerCache, copies: Sequence[tuple[int, int]]) -> None:
        """See `AttentionBackend.copy_blocks`."""
        for source, target in copies:
            for tensor in cache:
                tensor[target] = tensor[source]
