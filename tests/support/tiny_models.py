"""Tiny models with random weights, made without any file."""

from __future__ import annotations

from typing import Any

import torch

from octavo.core.model_spec import ModelSpec
from octavo.models.decoder import Decoder
from octavo.models.registry import build_model

_TINY: dict[str, Any] = {
    "architecture": "LlamaForCausalLM",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "max_position": 256,
}


def tiny_spec(**overrides: Any) -> ModelSpec:
    return ModelSpec(**{**_TINY, **overrides})


def tiny_decoder(
    spec: ModelSpec | None = None, *, dtype: torch.dtype = torch.float32, pack: bool = True
) -> Decoder:
    """A model whose greedy outputs vary, with weights from a fixed seed."""
    model = build_model(spec or tiny_spec(), dtype=dtype, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(1 + 0.1 * noise if "norm" in name else 0.3 * noise)
    if pack:
        model.pack()
    return model
