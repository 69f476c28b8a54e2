from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from octavo.layers import products
from octavo.layers.products import (
    OneDnnProduct,
    PlainProduct,
    UpcastProduct,
    choose_products,
    onednn_works,
)

CPU = torch.device("cpu")
needs_onednn = pytest.mark.skipif(
    not onednn_works(torch.float32), reason="this build of torch has no packed oneDNN products"
)


def problem(rows=5, inputs=64, outputs=80, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((rows, inputs), (outputs, inputs), (outputs,))
    )
    return x, weight, bias


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("make", [PlainProduct, pytest.param(OneDnnProduct, marks=needs_onednn)])
def test_products_agree_with_linear(make, with_bias):
    x, weight, bias = problem()
    chosen = bias if with_bias else None
    torch.testing.assert_close(
        make(weight, chosen)(x), F.linear(x, weight, chosen), rtol=1e-5, atol=1e-5
    )


@needs_onednn
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 80), (576, 960), (1536, 576)])
def test_packed_rows_depend_little_on_their_number(inputs, outputs):
    """Equal bits are not promised: on some processors with AVX-512 long sums are cut in parts."""
    x, weight, _ = problem(300, inputs, outputs)
    product = OneDnnProduct(weight, None)
    whole = product(x)
    for rows in (1, 2, 3, 7, 16, 33, 100, 257):
        for part, expected in ((x[:rows], whole[:rows]), (x[-rows:], whole[-rows:])):
            torch.testing.assert_close(product(part.clone()), expected, rtol=1e-5, atol=1e-4)


def test_upcast_rounds_once():
    x, weight, bias = problem(dtype=torch.bfloat16)
    exact = F.linear(x.float(), weight.float(), bias.float())
    product = UpcastProduct(PlainProduct, weight, bias)
    assert torch.equal(product(x), exact.to(torch.bfloat16))
    assert torch.equal(product(x.float()), exact)
    assert product.num_bytes == 2 * (weight.nbytes + bias.nbytes)


def test_gpu_and_missing_onednn_use_plain_products(monkeypatch):
    assert choose_products(torch.bfloat16, torch.device("cuda")).make is PlainProduct
    monkeypatch.setattr(products, "onednn_works", lambda dtype: False)
    assert choose_products(torch.float32, CPU).make is PlainProduct


@pytest.mark.parametrize("quick", [True, False])
def test_bfloat16_is_widened_where_the_cpu_is_slow_at_it(monkeypatch, quick):
    monkeypatch.setattr(products, "cpu_is_quick_at_bfloat16", lambda: quick)
    monkeypatch.setattr(products, "onednn_works", lambda dtype: True)
    strategy = choose_products(torch.bfloat16, CPU)
    assert strategy.takes_float32 is not quick
    assert strategy.name == ("onednn" if quick else "onednn, float32")


@pytest.mark.parametrize("failure", [RuntimeError("no kernel"), AttributeError("no operator")])
def test_onednn_that_fails_is_not_used(monkeypatch, failure):
    def broken(weight, bias):
        raise failure

    monkeypatch.setattr(products, "OneDnnProduct", broken)
    assert not onednn_works(torch.float32)


def test_onednn_that_is_wrong_is_not_used(monkeypatch):
    monkeypatch.setattr(
        products, "OneDnnProduct", lambda weight, bias: PlainProduct(weight * 1.01, bias)
    )
    assert not onednn_works(torch.float32)
