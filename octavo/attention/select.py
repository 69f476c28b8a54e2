"""Chooses the attention back-end, and says why each other one was refused."""

from __future__ import annotations

from typing import Literal

import torch

from octavo.attention.base import AttentionBackend, AttentionSpec, Placement
from octavo.attention.reference import ReferenceAttention
from octavo.attention.sdpa import SdpaAttention
from octavo.core.errors import ConfigError

FASTEST_FIRST = ("sdpa", "reference")

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def refusal(name: str, spec: AttentionSpec, placement: Placement) -> str | None:
    """Why the back-end of this name cannot serve the model here; None if it can."""
    for what, dtype in (("dtype", placement.dtype), ("kv_cache_dtype", placement.kv_dtype)):
        if dtype not in _FLOATS:
            return f"{what} {dtype} is not one of float32, bfloat16, float16"
    if spec.num_heads % spec.num_kv_heads:
        return f"{spec.num_heads} heads do not share {spec.num_kv_heads} KV heads evenly"
    if name == "sdpa" and spec.soft_cap is not None:
        return f"it has no soft cap on scores (the model's is {spec.soft_cap:g})"
    return None


def choose(
    spec: AttentionSpec,
    placement: Placement,
    requested: Literal["auto", "reference", "sdpa"] = "auto",
) -> AttentionBackend:
    """The requested back-end, or the fastest that can serve the model on this device.

    Raises:
        ConfigError: it cannot, or none can; the message holds each refusal.
    """
    candidates = FASTEST_FIRST if requested == "auto" else (requested,)
    reasons = []
    for name in candidates:
        reason = refusal(name, spec, placement)
        if reason is None:
            return (SdpaAttention if name == "sdpa" else ReferenceAttention)(spec, placement)
        reasons.append(f"{name}: {reason}")
    raise ConfigError(
        f"no attention back-end can serve this model on {placement.device}: {'; '.join(reasons)}. "
        "Use attention_backend auto, or another dtype."
    )
