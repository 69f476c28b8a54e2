"""Rows that compute several tokens: whole prompts and pieces of them, one row at a time.

A prompt that starts at position 0 attends to its own K and V. A piece that continues a context
reads that context through its slots. Masks depend on the distance between query and key only, so
one mask, made once and cut to size, serves every row of every step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.attention.base import AttentionSpec, BatchLayout, LayerCache, Placement, row_slots
from octavo.attention.one_token import gather

MAX_MASK_ELEMENTS = 1 << 21
MAX_PIECE_TOKENS = 256
MIN_PIECE_TOKENS = 16


class Chunk(NamedTuple):
    """One row: packed tokens ``first : end``, whose first is at position ``start``."""

    first: int
    end: int
    start: int
    slots: Tensor | None
    """Of the row's tokens from position ``first_key`` on; None if the new tokens are all."""
    first_key: int

    @property
    def piece_tokens(self) -> int:
        """Queries to attend at once: fewer when the context is long, so that masks stay small.

        Depends on this row alone: what else is in the step does not change its arithmetic.
        """
        pieces = MAX_PIECE_TOKENS
        context = self.start + self.end - self.first - self.first_key
        while pieces > MIN_PIECE_TOKENS and pieces * context > MAX_MASK_ELEMENTS:
            pieces //= 2
        return pieces


class DistanceMask:
    """Zero where a query may see a key and minus infinity where it may not.

    ::

        keys    ... -3 -2 -1  0  1  2     positions relative to the first query
        query 0      0  0  0  0  x  x
        query 1      x  0  0  0  0  x     (window 4)
        query 2      x  x  0  0  0  0
    """

    def __init__(self, window: int | None, placement: Placement) -> None:
        self._window = window
        self._placement = placement
        self._masks: dict[int, Tensor] = {}

    def cut(self, queries: int, keys_before: int, *, piece: int) -> Tensor:
        """Mask of ``queries <= piece`` tokens over the ``keys_before`` tokens before them and
        themselves: ``[queries, keys_before + queries]``."""
        mask = self._masks.get(piece)
        if mask is None or mask.shape[1] - piece < keys_before:
            mask = self._masks[piece] = self._make(piece, max(1024, 2 * keys_before))
        origin = mask.shape[1] - piece
        return mask[:queries, origin - keys_before : origin + queries]

    def _make(self, piece: int, keys_before: int) -> Tensor:
        device = self._placement.device
        keys = torch.arange(-keys_before, piece, device=device)
        distance = torch.arange(piece, device=device)[:, None] - keys
        hidden = distance < 0
        if self._window is not None:
            hidden |= distance >= self._window
        zeros = torch.zeros(hidden.shape, dtype=self._placement.dtype, device=device)
        return zeros.masked_fill_(hidden, -torch.inf)


def prepare_chunks(layout: BatchLayout, spec: AttentionSpec, placement: Placement) -> list[Chunk]:
    """All rows of the step that compute more than one token."""
    chunks = []
    window = spec.sliding_window
    for row in np.flatnonzero(layout.query_lens > 1).tolist():
        first, end = layout.query_starts[row : row + 2].tolist()
        context = int(layout.context_lens[row])
        start = context - (end - first)
        first_key = 0 if window is None else max(0, start + 1 - window)
        slots = None
        if start > first_key:
            positions = np.arange(first_key, context)
            found = row_slots(layout.block_tables[row], positions, placement.block_size)
            slots = torch.from_numpy(found).to(placement.device)
        chunks.append(Chunk(first, end, start, slots, first_key))
    return chunks


def attend_chunk(
    chunk: Chunk,
    qkv: tuple[Tensor, Tensor, Tensor],
    cache: LayerCache,
    spec: AttentionSpec,
    mask: DistanceMask,
) -> Tensor:
    """Output of one row, ``[tokens, num_heads, head_dim]``.

    Args:
        qkv: packed queries, keys and values of the whole step; the cache already holds the latter.
    """
    q, k, v = (tensor[chunk.first : chunk.end] for tensor in qkv)
    tokens = len(q)
    if chunk.slots is not None:
        k, v = gather(cache.key, chunk.slots, q.dtype), gather(cache.value, chunk.slots, q.dtype)
    elif cache.key.dtype != q.dtype:
        # What a later chunk would read back, so that cutting a prompt changes nothing.
        k, v = k.to(cache.key.dtype).to(q.dtype), v.to(cache.value.dtype).to(q.dtype)
    if chunk.slots is None and (spec.sliding_window is None or tokens <= spec.sliding_window):
        return _dense(q, k, v, spec, mask=None)
    out = torch.empty_like(q)
    before = chunk.start - chunk.first_key
    piece = chunk.piece_tokens
    for begin in range(0, tokens, piece):
        end = min(begin + piece, tokens)
        low = 0
        if spec.sliding_window is not None:
            low = max(0, before + begin + 1 - spec.sliding_window)
        high = before + end
        visible = mask.cut(end - begin, before + begin - low, piece=piece)
        out[begin:end] = _dense(q[begin:end], k[low:high], v[low:high], spec, mask=visible)
    return out


def _dense(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, *, mask: Tensor | None) -> Tensor:
    """Causal attention of one row; without a mask, queries and keys are the same tokens."""
    queries, keys = len(q), len(k)
    grouped = q.view(queries, spec.num_kv_heads, spec.group, spec.head_dim).permute(1, 2, 0, 3)
    shape = (spec.num_kv_heads, spec.group, keys, spec.head_dim)
    out = F.scaled_dot_product_attention(
        grouped,
        k.transpose(0, 1)[:, None].expand(shape),
        v.transpose(0, 1)[:, None].expand(shape),
        attn_mask=mask,
        is_causal=mask is None,
        scale=spec.scale,
    )
    return out.permute(2, 0, 1, 3).reshape(q.shape)
