"""Rounding to 8 and 4 bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import ConfigError
from octavo.loader.quantized import (
    INT4,
    INT8,
    Scheme,
    concatenated,
    quantize,
)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-3, 0.05, 1.0, 100.0]),
    shift=st.sampled_from([0.0, 1.0, -3.0]),
    scheme=st.sampled_from([INT8, Scheme(8, 64), INT4, Scheme(4, 64), Scheme(4, 128)]),
)
def test_no_value_moves_further_than_half_a_step(
    seed: int, scale: float, shift: float, scheme: Scheme
) -> None:
    rows = (torch.randn(5, 256, generator=torch.Generator().manual_seed(seed)) + shift) * scale
    matrix = quantize(rows, scheme)
    assert matrix.shape == (5, 256)
    assert int(matrix.codes.max()) < 1 << scheme.bits
    grouped = rows.view(5, -1, scheme.group)
    if scheme.bits == 8:
        step = grouped.abs().amax(-1) / 127
    else:
        step = (grouped.amax(-1).clamp(min=0) - grouped.amin(-1).clamp(max=0)) / 15
    moved = (matrix.dequantized().view_as(grouped) - grouped).abs().amax(-1)
    # A little more where the stored scale itself was rounded to half precision.
    assert (moved <= step * 0.51 + step * 127 * 2**-11 + 1e-6 * scale).all()


def test_exact_values_stay_exact() -> None:
    rows = torch.arange(-127, 129).clamp(max=127).view(8, 32).float() / 128
    rows[:, 0] = 127 / 128
    assert torch.equal(quantize(rows, INT8).dequantized(), rows)
    sixteenths = torch.arange(16).repeat(1, 2).float() / 16
    assert torch.equal(quantize(sixteenths, INT4).dequantized(), sixteenths)


@pytest.mark.parametrize("scheme", [INT8, INT4])
def test_zeros_and_constants(scheme: Scheme) -> None:
    rows = torch.zeros(3, 64)
    rows[1] = 0.5
    torch.testing.assert_close(quantize(rows, scheme).dequantized(), rows, rtol=1e-3, atol=0)


def test_matrices_on_top_of_each_other() -> None:
    rows = torch.randn(7, 64)
    whole = quantize(rows, INT4)
    parts = concatenated([quantize(rows[:3], INT4), quantize(rows[3:], INT4)])
    assert torch.equal(parts.dequantized(), whole.dequantized())
    order = torch.tensor([4, 0, 2])
    assert torch.equal(whole.rows(order).dequantized(), whole.dequantized()[order])


def test_refusals_name_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"rows of 48 values .* groups of 32"):
        quantize(torch.ones(2, 48), INT4)
    with pytest.raises(ConfigError, match="not all finite"):
        quantize(torch.full((2, 64), torch.nan), INT8)
