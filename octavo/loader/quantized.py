"""Matrices of 8-bit and 4-bit codes, and rounding to them.

A matrix is cut along its input dimension into groups that share a scale. Symmetric codes stand for
``scale * (code - zero)`` with zero 128 or 8; with minimums a code stands for ``scale * code +
minimum``. Rounding is to nearest, with the scale as it is stored: what its own rounding costs is in
the codes already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from octavo.core.errors import ConfigError

ACTIVATION_GROUP = 32
"""Every group is a multiple of this: activations have a scale for each 32 values."""

_HALF_MAX = 65504.0


class QuantizedMatrix(NamedTuple):
    """Rows ``[n, k]`` as codes; a matrix product uses it as it would use ``dequantized()``."""

    bits: Literal[4, 8]
    group: int
    """Values of a row that share a scale."""
    codes: Tensor
    """uint8 ``[n, k]``, one code a byte."""
    scales: Tensor
    """float16 ``[n, k / group]``."""
    minimums: Tensor | None = None
    """float16 ``[n, k / group]`` (4 bits only)."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def kind(self) -> tuple[int, int, bool]:
        """Matrices of one kind can be laid on top of each other."""
        return self.bits, self.group, self.minimums is not None

    def dequantized(self) -> Tensor:
        """float32 ``[n, k]``."""
        scales = self.scales.float().repeat_interleave(self.group, 1)
        if self.minimums is None:
            return scales * (self.codes.float() - (1 << (self.bits - 1)))
        return scales * self.codes.float() + self.minimums.float().repeat_interleave(self.group, 1)

    def rows(self, order: Tensor) -> QuantizedMatrix:
        """Some of the rows, in this order."""
        minimums = None if self.minimums is None else self.minimums[order]
        return self._replace(codes=self.codes[order], scales=self.scales[order], minimums=minimums)

    def for_kernels(self) -> tuple[int, int, Tensor, Tensor, Tensor | None]:
        """What the compiled kernels pack: bits, group, codes, scales, minimums."""
        minimums = None if self.minimums is None else self.minimums.view(torch.int16)
        return self.bits, self.group, self.codes, self.scales.view(torch.int16), minimums


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the matrices of a model are rounded."""

    bits: Literal[4, 8]
    group: int
    """As in `QuantizedMatrix`."""


INT8 = Scheme(8, 32)
INT4 = Scheme(4, 32)


def quantize(rows: Tensor, scheme: Scheme) -> QuantizedMatrix:
    """Rounds ``[n, k]`` of any float type; 4 bits get minimums.

    Raises:
        ConfigError: k is no multiple of the group, or values are not finite.
    """
    n, k = rows.shape
    group = scheme.group
    if k % group or group % ACTIVATION_GROUP:
        raise ConfigError(
            f"rows of {k} values cannot be cut into groups of {group}: use quantization none"
        )
    values = rows.float().view(n, k // group, group)
    if not torch.isfinite(values).all():
        raise ConfigError("weights are not all finite: they cannot be quantised")
    if scheme.bits == 8:
        return _symmetric8(values)
    return _asymmetric4(values)


def concatenated(parts: list[QuantizedMatrix]) -> QuantizedMatrix:
    """Matrices, all of one kind, on top of each other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    minimums = [part.minimums for part in parts if part.minimums is not None]
    return QuantizedMatrix(
        first.bits,
        first.group,
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(minimums) if minimums else None,
    )


def _symmetric8(values: Tensor) -> QuantizedMatrix:
    n, _, group = values.shape
    scales = _half(values.abs().amax(-1) / 127)
    steps = values / _divisor(scales.float())[..., None]
    codes = steps.round().clamp(-127, 127) + 128
    return QuantizedMatrix(8, group, codes.to(torch.uint8).view(n, -1), scales)


def _asymmetric4(values: Tensor) -> QuantizedMatrix:
    n, _, group = values.shape
    low = values.amin(-1).clamp(-_HALF_MAX, 0.0).half()
    scales = _half((values.amax(-1).clamp(min=0.0) - low.float()) / 15)
    steps = (values - low.float()[..., None]) / _divisor(scales.float())[..., None]
    codes = steps.round().clamp(0, 15).to(torch.uint8)
    return QuantizedMatrix(4, group, codes.view(n, -1), scales, low)


def _divisor(scales: Tensor) -> Tensor:
    """Scales without zeros: where all values are zero, so are the codes."""
    return torch.where(scales == 0, 1.0, scales)


def _half(scales: Tensor) -> Tensor:
    return scales.clamp(max=_HALF_MAX).half()
