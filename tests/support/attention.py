"""Random attention problems over a paged cache, and their answer by plain dense attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.attention.base import (
    AttentionBackend,
    AttentionSpec,
    BatchLayout,
    LayerCache,
    Placement,
)

CPU = torch.device("cpu")
Span = tuple[int, int, int]
"""(row, start, end): tokens ``start`` to ``end`` of that row are computed in a step."""


def make_spec(
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
) -> AttentionSpec:
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        sliding_window=window,
        soft_cap=soft_cap,
    )


def make_placement(
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
) -> Placement:
    return Placement(device=CPU, dtype=dtype, kv_dtype=kv_dtype or dtype, block_size=block_size)


class PagedCase:
    """Rows of random q, k and v, in blocks handed out in random order.

    Blocks that no row owns, and slots that no token fills, hold NaN: whoever reads them fails.
    """

    def __init__(
        self, spec: AttentionSpec, placement: Placement, lens: Sequence[int], seed: int = 0
    ) -> None:
        self.spec, self.placement, self.lens = spec, placement, list(lens)
        generator = torch.Generator().manual_seed(seed)
        heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        self.qkv = [
            [
                torch.randn(n, count, spec.head_dim, generator=generator).to(placement.dtype)
                for count in heads
            ]
            for n in lens
        ]
        blocks = [-(-n // placement.block_size) for n in lens]
        self.num_blocks = sum(blocks) + 3
        ids = np.random.default_rng(seed).permutation(self.num_blocks)
        self.tables = np.full((len(lens), max(blocks) + 1), 10**9, np.int64)
        for row, count in enumerate(blocks):
            begin = sum(blocks[:row])
            self.tables[row, :count] = ids[begin : begin + count]

    def empty_cache(self, backend: AttentionBackend) -> LayerCache:
        return LayerCache(
            *(
                torch.full((self.num_blocks, *shape), torch.nan, dtype=self.placement.kv_dtype)
                for shape in backend.block_shapes()
            )
        )

    def layout(self, spans: Sequence[Span]) -> BatchLayout:
        size = self.placement.block_size
        slots = [
            self.tables[row, position // size] * size + position % size
            for row, start, end in spans
            for position in range(start, end)
        ]
        counts = [end - start for _, start, end in spans]
        return BatchLayout(
            slots=np.array(slots),
            query_starts=np.cumsum([0, *counts]),
            context_lens=np.array([end for _, _, end in spans]),
            block_tables=self.tables[[row for row, _, _ in spans]],
        )

    def run(
        self,
        backend: AttentionBackend,
        steps: Iterable[Sequence[Span]],
        cache: LayerCache | None = None,
    ) -> list[Tensor]:
        """Runs the steps in order; each row's outputs, ``[len, num_heads, head_dim]``."""
        if cache is None:
            cache = self.empty_cache(backend)
        outs: list[list[Tensor]] = [[] for _ in self.lens]
        for spans in steps:
            q, k, v = (
                torch.cat([self.qkv[row][part][start:end] for row, start, end in spans])
                for part in range(3)
            )
            out = backend.forward(q, k, v, cache, backend.prepare(self.layout(spans)))
            for (row, start, end), piece in zip(
                spans, out.split([end - start for _, start, end in spans]), strict=True
            ):
                assert piece.shape == (end - start, self.spec.num_heads, self.spec.head_dim)
                outs[row].append(piece)
        return [torch.cat(pieces) if pieces else torch.empty(0) for pieces in outs]

    def whole(self) -> list[Span]:
        return [(row, 0, n) for row, n in enumerate(self.lens)]

    def random_steps(self, seed: int) -> list[list[Span]]:
        """Every token once, in steps that mix one-token rows, pieces and whole rows."""
        rng = np.random.default_rng(seed)
        done = [0] * len(self.lens)
        steps = []
        while any(d < n for d, n in zip(done, self.lens, strict=True)):
            spans = []
            for row in rng.permutation(len(self.lens)).tolist():
                left = self.lens[row] - done[row]
                if left == 0 or rng.random() < 0.2:
                    continue
                count = min(left, int(rng.choice([1, 1, 2, 7, 16, left])))
                spans.append((row, done[row], done[row] + count))
                done[row] += count
            if spans:
                steps.append(spans)
        return steps


def dense(case: PagedCase) -> list[Tensor]:
    """Each row's output by one masked softmax over all pairs of its tokens, in float64."""
    outs = []
    for q, k, v in case.qkv:
        n, spec = len(q), case.spec
        distance = torch.arange(n)[:, None] - torch.arange(n)
        hidden = distance < 0
        if spec.sliding_window is not None:
            hidden |= distance >= spec.sliding_window
        out = torch.empty(q.shape, dtype=torch.float64)
        for head in range(spec.num_heads):
            kv_head = head // (spec.num_heads // spec.num_kv_heads)
            keys = k[:, kv_head].to(case.placement.kv_dtype).double()
            values = v[:, kv_head].to(case.placement.kv_dtype).double()
            scores = q[:, head].double() @ keys.T * spec.scale
            if spec.soft_cap is not None:
                scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
            out[:, head] = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values
        outs.append(out.to(q.dtype))
    return outs
