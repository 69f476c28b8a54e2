"""The skeleton that decoder-only transformers share: embedding, blocks, norm, output projection.

Llama, SmolLM2, Mistral, Qwen2 and Qwen3 are this skeleton with different flags of `ModelSpec`
(biases, query and key norms, sliding window, rope scaling, tied embeddings), so they need no file
of their own. A family that differs in more than that gets one, and a line in `registry`.

Parameter names, which the loader fills::

    embed.weight                          norm.weight            head.weight (unless tied)
    layers.{i}.input_norm.weight          layers.{i}.post_norm.weight
    layers.{i}.attn.qkv.{weight,bias}     layers.{i}.attn.out.{weight,bias}
    layers.{i}.attn.{q,k}_norm.weight
    layers.{i}.mlp.gate_up.{weight,bias}  layers.{i}.mlp.down.{weight,bias}
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.attention.base import ForwardContext
from octavo.core.model_spec import ModelSpec
from octavo.layers.attention import Attention
from octavo.layers.embedding import Embedding
from octavo.layers.linear import Linear
from octavo.layers.mlp import Mlp
from octavo.layers.norm import RmsNorm
from octavo.layers.products import PlainProduct, ProductStrategy, choose_products
from octavo.layers.rotary import Rotary, Rotation


class DecoderBlock(nn.Module):
    """Attention and feed-forward, each after a norm and added to the residual."""

    def __init__(
        self, spec: ModelSpec, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        size, eps = spec.hidden_size, spec.rms_norm_eps
        self.input_norm = RmsNorm(size, eps, dtype=dtype, device=device)
        self.attn = Attention(spec, layer, dtype=dtype, device=device)
        self.post_norm = RmsNorm(size, eps, dtype=dtype, device=device)
        self.mlp = Mlp(spec, dtype=dtype, device=device)

    def forward(
        self, x: Tensor, residual: Tensor | None, rotation: Rotation, ctx: ForwardContext
    ) -> tuple[Tensor, Tensor]:
        """(output, residual); their sum is the block's result, left to the next norm."""
        if residual is None:
            residual, x = x, self.input_norm(x)
        else:
            x, residual = self.input_norm.add(x, residual)
        x, residual = self.post_norm.add(self.attn(x, rotation, ctx), residual)
        return self.mlp(x), residual


class Decoder(nn.Module):
    """A decoder-only transformer that keeps its K and V in ``ctx``."""

    head: Linear | None

    def __init__(self, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.spec, self.dtype, self.device = spec, dtype, device
        hidden, vocab = spec.hidden_size, spec.vocab_size
        self.embed = Embedding(vocab, hidden, dtype=dtype, device=device)
        self.layers = nn.ModuleList(
            DecoderBlock(spec, layer, dtype=dtype, device=device)
            for layer in range(spec.num_layers)
        )
        self.norm = RmsNorm(hidden, spec.rms_norm_eps, dtype=dtype, device=device)
        self.head = None
        if not spec.tie_embeddings:
            self.head = Linear(hidden, vocab, dtype=dtype, device=device)
        self._rotary = Rotary(
            spec.rope, spec.head_dim, spec.max_position, dtype=dtype, device=device
        )
        self.products = ProductStrategy("linear", PlainProduct)
        """How matrix products run; chosen by `pack`."""

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """Hidden states ``[num_tokens, hidden_size]`` of packed tokens; int64 ``[num_tokens]``
        each. K and V of every token are in the cache afterwards."""
        rotation = self._rotary.at(positions)
        x, residual = self.embed(token_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, rotation, ctx)
        return self.norm.add(x, residual)[0] if residual is not None else self.norm(x)

    def normalised(self, hidden: Tensor) -> Tensor:
        """See `CausalModel.normalised`."""
        return hidden.float()  # the last norm is part of `forward`

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """``[rows, hidden_size]`` to float32 ``[rows, vocab_size]``."""
        if self.products.takes_float32:
            hidden = hidden.float()
        scores = self.embed.scores(hidden) if self.head is None else self.head(hidden)
        return scores.float()

    @torch.inference_mode()
    def pack(self) -> None:
        """Puts loaded weights into the form that this device multiplies fastest.

        Call it once, after loading; linear layers have no parameters after it.
        """
        self.products = choose_products(self.dtype, self.device)
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack(self.products)
        if self.head is None:
            self.embed.pack_as_output(self.products)

    @property
    def weight_bytes(self) -> int:
        """Memory of weights and tables as they are held now, packed or not."""
        total = self._rotary.table_bytes
        for module in self.modules():
            if isinstance(module, Linear | Embedding):
                total += module.weight_bytes
            elif isinstance(module, RmsNorm):
                total += module.weight.nbytes
        return total
