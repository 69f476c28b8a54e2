"""The attention layer: projections and rotation around the back-end's attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.attention.base import AttentionSpec, ForwardContext
from octavo.core.model_spec import ModelSpec
from octavo.layers.linear import Linear
from octavo.layers.norm import RmsNorm
from octavo.layers.rotary import Rotation, rotate


def attention_spec(spec: ModelSpec) -> AttentionSpec:
    """What the model's layers ask of an attention back-end."""
    return AttentionSpec(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        scale=spec.head_dim**-0.5,
        sliding_window=spec.sliding_window,
    )


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; query, key and value in one product."""

    q_norm: RmsNorm | None
    k_norm: RmsNorm | None

    def __init__(
        self, spec: ModelSpec, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        width = spec.q_size + 2 * spec.kv_size
        self.qkv = Linear(spec.hidden_size, width, bias=spec.qkv_bias, dtype=dtype, device=device)
        self.out = Linear(
            spec.q_size, spec.hidden_size, bias=spec.output_bias, dtype=dtype, device=device
        )
        self.q_norm = self.k_norm = None
        if spec.qk_norm:
            norm_eps = spec.rms_norm_eps
            self.q_norm = RmsNorm(spec.head_dim, norm_eps, dtype=dtype, device=device)
            self.k_norm = RmsNorm(spec.head_dim, norm_eps, dtype=dtype, device=device)
        self._layer = layer
        self._heads = (spec.num_heads, spec.num_kv_heads)
        self._head_dim = spec.head_dim

    def forward(self, x: Tensor, rotation: Rotation, ctx: ForwardContext) -> Tensor:
        """``[num_tokens, hidden_size]`` to the same shape."""
        heads, kv_heads = self._heads
        qkv = self.qkv(x).view(len(x), heads + 2 * kv_heads, self._head_dim)
        qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, :heads]), self.k_norm(qk[:, heads:])), dim=1)
        qk = rotate(qk, rotation)
        attended = ctx.attend(self._layer, qk[:, :heads], qk[:, heads:], v)
        return self.out(attended.reshape(len(x), -1))  # type: ignore[no-any-return]
