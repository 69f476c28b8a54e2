"""Products of the compiled kernels: near the exact result, and a row's bits its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from octavo.kernels import native
from octavo.loader.quantized import INT4, INT8, QuantizedMatrix, Scheme, quantize

pytestmark = pytest.mark.skipif(
    not native.instruction_sets(), reason="octavo-native is not installed: no compiler was found"
)

KINDS = (
    "float32",
    "bfloat16",
    "int8",
    "int8 wide groups",
    "int4",
    "int4 symmetric",
    "int4 wide groups",
)
# Of the result's norm. Integer products round activations to 1/127 of the largest in their group.
TOLERANCES = {"float32": 1e-6, "bfloat16": 1e-6}
INTEGER_TOLERANCE = 0.008


def matrix(n: int, k: int, kind: str, seed: int = 0) -> Tensor | QuantizedMatrix:
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * 0.05
    match kind:
        case "float32":
            return weight
        case "bfloat16":
            return weight.bfloat16()
        case "int8":
            return quantize(weight, INT8)
        case "int8 wide groups":
            return quantize(weight, Scheme(8, 64))
        case "int4":
            return quantize(weight, INT4)
        case "int4 wide groups":
            return quantize(weight, Scheme(4, 64))
        case _:
            whole = quantize(weight, INT4)
            return QuantizedMatrix(4, 32, whole.codes, whole.scales)


def values(weight: Tensor | QuantizedMatrix) -> Tensor:
    return weight.dequantized() if isinstance(weight, QuantizedMatrix) else weight.float()


class Product:
    def __init__(self, isa: str, weight: Any, bias: Tensor | None = None, gate: str = "") -> None:
        packed = weight.for_kernels() if isinstance(weight, QuantizedMatrix) else weight
        self.linear = native.extension().Linear(isa, packed, bias, gate)
        self.n = weight.shape[0] // (2 if gate else 1)
        self.k = weight.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.full((len(x), self.n), torch.nan)
        self.linear.run(x.contiguous(), y)
        return y


def inputs(m: int, k: int, seed: int = 1) -> Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed))


def error(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture(params=native.instruction_sets())
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(1, 64), (31, 128), (33, 64), (96, 576), (200, 1536)])
def test_near_the_exact_product(isa: str, kind: str, n: int, k: int) -> None:
    weight = matrix(n, k, kind)
    x = inputs(13, k)
    expected = x.double() @ values(weight).double().T
    tolerance = TOLERANCES.get(kind, INTEGER_TOLERANCE)
    assert error(Product(isa, weight)(x), expected) < tolerance


@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_a_row_are_its_own(isa: str, kind: str) -> None:
    product = Product(isa, matrix(70, 192, kind))
    x = inputs(257, 192)
    whole = product(x)
    for m in (*range(1, 30), 31, 32, 33, 64, 100, 128, 255, 256):
        assert torch.equal(product(x[:m]), whole[:m]), m
    order = torch.randperm(257, generator=torch.Generator().manual_seed(2))
    assert torch.equal(product(x[order]), whole[order])
    strangers = torch.cat([x[:1], 1e6 * inputs(40, 192, seed=3)])
    assert torch.equal(product(strangers)[:1], whole[:1])


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 80),
    groups=st.integers(1, 12),
    m=st.integers(1, 20),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 99),
)
def test_any_shape(n: int, groups: int, m: int, kind: str, seed: int) -> None:
    k = 64 * groups
    weight = matrix(n, k, kind, seed)
    x = inputs(m, k, seed)
    expected = x.double() @ values(weight).double().T
    for isa in native.instruction_sets():
        y = Product(isa, weight)(x)
        bound = 0.03 * x.norm(dim=1, keepdim=True) * values(weight).norm(dim=1)
        assert ((y - expected).abs() <= bound).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gate", ["silu", "gelu"])
def test_bias_and_gate(isa: str, kind: str, gate: str) -> None:
    weight, bias = matrix(72, 64, kind), torch.linspace(-2, 2, 72)
    x = inputs(9, 64)
    both = x.double() @ values(weight).double().T + bias
    activation = torch.nn.SiLU() if gate == "silu" else torch.nn.GELU(approximate="tanh")
    assert error(Product(isa, weight, bias)(x), both) < 0.01
    expected = activation(both[:, :36]) * both[:, 36:]
    assert error(Product(isa, weight, bias, gate)(x), expected) < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_rows_come_back_as_they_were_packed(isa: str, kind: str) -> None:
    weight = matrix(50, 128, kind)
    linear = Product(isa, weight).linear
    for row in (0, 31, 32, 49):
        out = torch.full((128,), torch.nan)
        linear.unpack_row(row, out)
        torch.testing.assert_close(out, values(weight)[row], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_row_and_is_seen(isa: str, kind: str, bad: float) -> None:
    product = Product(isa, matrix(40, 128, kind))
    x = inputs(7, 128)
    clean = product(x)
    x[3, 50] = bad
    y = product(x)
    assert not torch.isfinite(y[3]).any()
    keep = [0, 1, 2, 4, 5, 6]
    assert torch.equal(y[keep], clean[keep])


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_inputs(isa: str, kind: str) -> None:
    """Zeros, denormals, large norms, and one value that dwarfs the others."""
    weight = matrix(40, 128, kind)
    product = Product(isa, weight)
    assert torch.equal(product(torch.zeros(2, 128)), torch.zeros(2, 40))
    assert torch.isfinite(product(torch.full((2, 128), 1e-42))).all()
    assert product(torch.full((2, 128), 1e-42)).abs().max() < 1e-38
    large = 1e30 * inputs(3, 128)
    assert error(product(large), large.double() @ values(weight).double().T) < 0.02
    peaked = torch.zeros(1, 128)
    peaked[0, 77] = 1e6
    expected = 1e6 * values(weight)[:, 77]
    torch.testing.assert_close(product(peaked)[0], expected, rtol=1e-5, atol=0.05)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((5, 32, 64, 2, None), "8 or 4 bits"),
        ((4, 0, 64, 2, None), "multiple"),
        ((4, 48, 96, 2, None), "multiple"),
        ((4, 32, 80, 2, None), "multiple"),
        ((4, 32, 64, 3, None), "scales"),
        ((8, 32, 64, 2, 2), "minimums"),
        ((4, 32, 64, 2, 1), "minimums"),
    ],
)
def test_matrices_that_contradict_themselves_are_refused(
    parts: tuple[int, int, int, int, int | None], message: str
) -> None:
    bits, group, k, per_row, lows = parts
    scales = torch.ones(6, per_row, dtype=torch.int16)
    minimums = None if lows is None else torch.ones(6, lows, dtype=torch.int16)
    weight = (bits, group, torch.zeros(6, k, dtype=torch.uint8), scales, minimums)
    with pytest.raises(ValueError, match=message):
        native.extension().Linear("portable", weight)
