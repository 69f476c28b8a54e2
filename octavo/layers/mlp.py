"""The gated feed-forward layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.core.model_spec import ModelSpec
from octavo.layers.linear import Linear


class Mlp(nn.Module):
    """``down(activation(gate(x)) * up(x))``, with gate and up in one product, gate first."""

    def __init__(self, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden, inner, bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias
        self.gate_up = Linear(hidden, 2 * inner, bias=bias, dtype=dtype, device=device)
        self.down = Linear(inner, hidden, bias=bias, dtype=dtype, device=device)
        self._is_silu = spec.activation == "silu"

    def forward(self, x: Tensor) -> Tensor:
        """``[num_tokens, hidden_size]`` to the same shape."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        active = F.silu(gate) if self._is_silu else F.gelu(gate, approximate="tanh")
        return self.down(active.mul_(up))  # type: ignore[no-any-return]
