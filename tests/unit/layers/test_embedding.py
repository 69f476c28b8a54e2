from __future__ import annotations

import torch

from octavo.layers.embedding import Embedding
from octavo.layers.products import PlainProduct, ProductStrategy, choose_products

CPU = torch.device("cpu")


def make() -> Embedding:
    layer = Embedding(50, 32, dtype=torch.float32, device=CPU)
    layer.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    return layer


def test_rows_and_scores_are_of_one_matrix():
    layer = make()
    ids = torch.tensor([3, 3, 49])
    assert torch.equal(layer(ids), layer.weight[ids])
    hidden = torch.randn(2, 32, generator=torch.Generator().manual_seed(1))
    before = layer.scores(hidden)
    torch.testing.assert_close(before, hidden @ layer.weight.T, rtol=1e-5, atol=1e-5)
    layer.pack_as_output(choose_products(torch.float32, CPU))
    torch.testing.assert_close(layer.scores(hidden), before, rtol=1e-5, atol=1e-5)
    assert torch.equal(layer(ids), layer.weight[ids])


def test_memory_counts_a_packed_copy_but_no_shared_one():
    layer = make()
    alone = layer.weight_bytes
    layer.pack_as_output(ProductStrategy("plain", PlainProduct))
    assert layer.weight_bytes == alone == 50 * 32 * 4

    class Packed:
        num_bytes = 1000

        def __call__(self, x):
            return x

    layer.pack_as_output(ProductStrategy("packed", lambda weight, bias: Packed()))
    assert layer.weight_bytes == alone + 1000
