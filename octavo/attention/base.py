"""What a model needs from attention over a paged KV cache, and what a back-end must offer.

A step's tokens lie packed one after the other, row by row. A back-end writes K and V of the new
tokens to their slots, and lets each new token attend to all tokens of its row up to itself. How K
and V lie inside a block is the back-end's own business: above it there are only block ids and
slots (``block id * block_size + offset``), which name the same place in every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The arithmetic of one attention layer."""

    num_heads: int
    num_kv_heads: int
    """Query head ``h`` reads KV head ``h // (num_heads // num_kv_heads)``."""
    head_dim: int
    scale: float
    """Multiplies the dot products of queries and keys."""
    sliding_window: int | None = None
    """A token attends to itself and the ``sliding_window - 1`` tokens before it."""
    soft_cap: float | None = None
    """If set, scaled scores become ``soft_cap * tanh(score / soft_cap)``."""

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where attention runs, and in which precisions."""

    device: torch.device
    dtype: torch.dtype
    """Of queries, new keys and values, and the output."""
    kv_dtype: torch.dtype
    """Of cached K and V."""
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """Which tokens a step computes, and where the K and V of its rows lie. Host arrays.

    Row ``r`` owns the packed tokens ``query_starts[r] : query_starts[r + 1]``, which are the last
    of its ``context_lens[r]`` tokens. Entries of ``block_tables`` beyond a row's context mean
    nothing and must not be read.
    """

    slots: IntArray  # [num_tokens]
    query_starts: IntArray  # [num_rows + 1]
    context_lens: IntArray  # [num_rows]
    block_tables: IntArray  # [num_rows, at least the longest context in blocks]

    @property
    def query_lens(self) -> IntArray:
        """New tokens of each row, ``[num_rows]``; none is zero."""
        return np.diff(self.query_starts)


class LayerCache(NamedTuple):
    """K and V of one layer, each ``[num_blocks, *shape that the back-end chose]``."""

    key: Tensor
    value: Tensor


class AttentionBackend(Protocol):
    """Attention for the layers of one model, all with the same `AttentionSpec`."""

    name: str
    spec: AttentionSpec
    placement: Placement

    def block_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape of one block of K and of V in one layer."""

    def prepare(self, layout: BatchLayout) -> Any:
        """What `forward` needs to know of a step, made once and used by every layer."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, metadata: Any) -> Tensor:
        """Writes K and V of the new tokens into the cache, then attends through block tables.

        Args:
            q: ``[num_tokens, num_heads, head_dim]``, rotated.
            k, v: ``[num_tokens, num_kv_heads, head_dim]``, rotated.
            metadata: from `prepare` of this step.

        Returns:
            ``[num_tokens, num_heads, head_dim]`` in the type of ``q``. A row's values depend on
            slots that its own context fills, and on no others.
        """

    def copy_blocks(self, cache: LayerCache, copies: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, given as (source, target), as if one after the other."""


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What a forward pass may know besides token ids and positions; an argument, never a global."""

    backend: AttentionBackend
    caches: Sequence[LayerCache]
    metadata: Any

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of one layer of the model; shapes as in `AttentionBackend.forward`."""
        return self.backend.forward(q, k, v, self.caches[layer], self.metadata)


def row_slots(
    block_table: npt.NDArray[np.integer[Any]], positions: IntArray, block_size: int
) -> IntArray:
    """Slots of these token positions of one row."""
    blocks = block_table[positions // block_size].astype(np.int64)
    return blocks * block_size + positions % block_size
