"""Our parameter names and shapes, written out independently of the loader's table."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from octavo.core.model_spec import ModelSpec


def parameter_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every parameter that a model of this spec has."""
    hidden, inner, qkv = spec.hidden_size, spec.intermediate_size, spec.q_size + 2 * spec.kv_size
    shapes: dict[str, tuple[int, ...]] = {
        "embed.weight": (spec.vocab_size, hidden),
        "norm.weight": (hidden,),
    }
    if not spec.tie_embeddings:
        shapes["head.weight"] = (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        at = f"layers.{layer}."
        shapes[at + "input_norm.weight"] = shapes[at + "post_norm.weight"] = (hidden,)
        shapes[at + "attn.qkv.weight"] = (qkv, hidden)
        shapes[at + "attn.out.weight"] = (hidden, spec.q_size)
        shapes[at + "mlp.gate_up.weight"] = (2 * inner, hidden)
        shapes[at + "mlp.down.weight"] = (hidden, inner)
        if spec.qkv_bias:
            shapes[at + "attn.qkv.bias"] = (qkv,)
        if spec.output_bias:
            shapes[at + "attn.out.bias"] = (hidden,)
        if spec.mlp_bias:
            shapes[at + "mlp.gate_up.bias"] = (2 * inner,)
            shapes[at + "mlp.down.bias"] = (hidden,)
        if spec.qk_norm:
            shapes[at + "attn.q_norm.weight"] = shapes[at + "attn.k_norm.weight"] = (spec.head_dim,)
    return shapes


def empty_model(spec: ModelSpec, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A tree of modules with exactly those parameters, all NaN, and no computation."""
    root = nn.Module()
    for name, shape in parameter_shapes(spec).items():
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        value = torch.full(shape, float("nan"), dtype=dtype)
        module.register_parameter(leaf, nn.Parameter(value, requires_grad=False))
    return root


def fused_parameters(model: Any) -> dict[str, torch.Tensor]:
    """A transformers model's weights under our names, fused as ours are."""
    state = {name: value.detach() for name, value in model.named_parameters()}
    fused = {
        "embed.weight": state["model.embed_tokens.weight"],
        "norm.weight": state["model.norm.weight"],
    }
    if "lm_head.weight" in state:
        fused["head.weight"] = state["lm_head.weight"]
    groups = {
        "input_norm": ["input_layernorm"],
        "post_norm": ["post_attention_layernorm"],
        "attn.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "attn.out": ["self_attn.o_proj"],
        "attn.q_norm": ["self_attn.q_norm"],
        "attn.k_norm": ["self_attn.k_norm"],
        "mlp.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
        "mlp.down": ["mlp.down_proj"],
    }
    for layer in range(model.config.num_hidden_layers):
        for ours, theirs in groups.items():
            for kind in ("weight", "bias"):
                names = [f"model.layers.{layer}.{name}.{kind}" for name in theirs]
                if names[0] in state:
                    fused[f"layers.{layer}.{ours}.{kind}"] = torch.cat([state[n] for n in names])
    return fused
