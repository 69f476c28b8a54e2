"""Root-mean-square normalisation (Zhang and Sennrich, 2019), with the residual sum before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.layers.linear import empty_parameter


class RmsNorm(nn.Module):
    """Normalises the last dimension in float32, rounds, then scales by ``weight``.

    The order of rounding is that of transformers, so that outputs agree.
    """

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = empty_parameter(size, dtype=dtype, device=device)
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``[..., size]`` to the same shape and type."""
        return F.rms_norm(x, self.weight.shape, eps=self._eps).mul_(self.weight)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(normalised sum, sum); ``residual`` is overwritten with the sum."""
        residual += x
        return self(residual), residual
