from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.tiny_models import tiny_spec

from octavo.layers.mlp import Mlp


@pytest.mark.parametrize(
    ("activation", "function"),
    [("silu", F.silu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))],
)
@pytest.mark.parametrize("bias", [True, False])
def test_gate_comes_first_and_is_activated(activation, function, bias):
    spec = tiny_spec(activation=activation, mlp_bias=bias)
    layer = Mlp(spec, dtype=torch.float32, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.normal_(std=0.3, generator=generator)
    x = torch.randn(3, spec.hidden_size, generator=generator)
    inner = spec.intermediate_size
    gate_up, down = layer.gate_up, layer.down
    halves = [
        F.linear(x, gate_up.weight[part], gate_up.bias[part] if bias else None)
        for part in (slice(inner), slice(inner, None))
    ]
    expected = F.linear(function(halves[0]) * halves[1], down.weight, down.bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-6)
