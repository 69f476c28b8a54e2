"""Sums over a vocabulary whose bits do not depend on how many rows are summed.

torch splits a long row among threads, but only if there are fewer rows than threads, and then adds
in another order. Summed in short pieces, a row is never split.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PIECE = 256


def row_sums(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """``[rows, n]`` to ``[rows]``, in ``dtype`` if given."""
    rows, n = x.shape
    whole = n // _PIECE * _PIECE
    parts = x[:, :whole].reshape(rows, -1, _PIECE).sum(-1, dtype=dtype)
    rest = x[:, whole:].sum(-1, dtype=dtype)
    if parts.shape[1] > _PIECE:
        return row_sums(parts, dtype) + rest
    return parts.sum(-1) + rest


def log_sum_exp(x: Tensor) -> Tensor:
    """``[rows, n]`` float32 to ``[rows, 1]``: the logarithm of the sum of exponentials."""
    peaks = x.amax(dim=-1, keepdim=True)
    # A row of nothing but minus infinity has no likely value to subtract.
    base = torch.where(torch.isfinite(peaks), peaks, torch.zeros_like(peaks))
    return torch.log(row_sums(torch.exp(x - base)))[:, None] + base
