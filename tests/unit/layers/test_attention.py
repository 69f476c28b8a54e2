from __future__ import annotations

import torch
from support.tiny_models import tiny_spec

from octavo.attention.base import ForwardContext
from octavo.layers.attention import Attention, attention_spec
from octavo.layers.rotary import Rotary, rotate

CPU = torch.device("cpu")


class Recorder:
    """An attention back-end that returns its queries."""

    def forward(self, q, k, v, cache, metadata):
        self.seen = (q, k, v, cache, metadata)
        return q


def test_spec_of_a_model():
    spec = attention_spec(tiny_spec(sliding_window=5))
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.group) == (4, 2, 8, 2)
    assert spec.scale == 8**-0.5
    assert spec.sliding_window == 5


def test_back_end_gets_rotated_heads_and_its_layers_cache():
    spec = tiny_spec(qkv_bias=True, output_bias=True, qk_norm=True)
    layer = Attention(spec, 1, dtype=torch.float32, device=CPU)
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.normal_(generator=generator)
    x = torch.randn(3, spec.hidden_size, generator=generator)
    rotation = Rotary(spec.rope, 8, 64, dtype=torch.float32, device=CPU).at(torch.arange(3))
    backend = Recorder()
    out = layer(x, rotation, ForwardContext(backend, ["first", "second"], "metadata"))
    q, k, v, cache, metadata = backend.seen
    assert (cache, metadata) == ("second", "metadata")
    qkv = layer.qkv(x)
    wanted = rotate(layer.q_norm(qkv[:, :32].view(3, 4, 8)), rotation)
    torch.testing.assert_close(q, wanted)
    torch.testing.assert_close(k, rotate(layer.k_norm(qkv[:, 32:48].view(3, 2, 8)), rotation))
    torch.testing.assert_close(v, qkv[:, 48:].view(3, 2, 8))
    torch.testing.assert_close(out, layer.out(wanted.reshape(3, 32)))
