from __future__ import annotations

import torch

from octavo.layers.linear import Linear
from octavo.layers.products import PlainProduct, ProductStrategy, choose_products

CPU = torch.device("cpu")


def make(bias: bool = True) -> Linear:
    layer = Linear(64, 80, bias=bias, dtype=torch.float32, device=CPU)
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.normal_(generator=generator)
    return layer


def test_packing_changes_form_and_not_results():
    layer = make()
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    before, size = layer(x), layer.weight_bytes
    assert size == (64 * 80 + 80) * 4
    layer.pack(choose_products(torch.float32, CPU))
    assert list(layer.parameters()) == []
    assert layer.weight_bytes == size
    torch.testing.assert_close(layer(x), before, rtol=1e-5, atol=1e-5)


def test_strategy_gets_the_weight_once():
    given = []

    def record(weight, bias):
        given.append((weight.shape, bias))
        return PlainProduct(weight, bias)

    layer = make(bias=False)
    for _ in range(2):
        layer.pack(ProductStrategy("recorder", record))
    assert given == [((80, 64), None)]
