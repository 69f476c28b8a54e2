"""Rotary position embedding (Su et al., 2021): default, linear and llama3 scaling.

Halves of a head form the rotated pairs: element ``i`` turns with element ``i + head_dim / 2``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.core.model_spec import RopeSpec


class Rotation(NamedTuple):
    """Cosines and sines for the tokens of a step, in the type of the activations."""

    cos: Tensor  # [num_tokens, 1, head_dim]
    sin: Tensor  # [num_tokens, 1, head_dim], negative in the first half


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Radians per position of each pair, scaled as ``rope`` says: float32 ``[head_dim / 2]``."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.freq_factors is not None:
        return frequencies / torch.tensor(rope.freq_factors)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: Tensor, rope: RopeSpec) -> Tensor:
    """Slows long waves by ``factor``, keeps short ones, blends between: the rule of Llama 3.1."""
    wavelengths = 2 * math.pi / frequencies
    long_wave = rope.original_max_position / rope.low_freq_factor
    short_wave = rope.original_max_position / rope.high_freq_factor
    slowed = torch.where(wavelengths > long_wave, frequencies / rope.factor, frequencies)
    blend = (rope.original_max_position / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * slowed / rope.factor + blend * slowed
    between = (wavelengths <= long_wave) & (wavelengths >= short_wave)
    return torch.where(between, blended, slowed)


class Rotary:
    """Tables of cosines and sines for every position, float32."""

    def __init__(
        self,
        rope: RopeSpec,
        head_dim: int,
        max_position: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        positions = torch.arange(max_position, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(rope, head_dim))
        self._cos = angles.cos().to(device)  # [max_position, head_dim / 2]
        self._sin = angles.sin_().to(device)
        self._dtype = dtype

    @property
    def table_bytes(self) -> int:
        """Memory of both tables."""
        return self._cos.nbytes + self._sin.nbytes

    def at(self, positions: Tensor) -> Rotation:
        """The rotation of tokens at these positions, for every layer of a step."""
        cos = self._cos.index_select(0, positions).to(self._dtype)
        sin = self._sin.index_select(0, positions).to(self._dtype)
        return Rotation(torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None])


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates ``[num_tokens, heads, head_dim]``; products are rounded before their sum, as in
    transformers."""
    swapped = torch.roll(x, x.shape[-1] // 2, dims=-1)
    return (x * rotation.cos).add_(swapped.mul_(rotation.sin))
