"""How many requests fit and how fast they can go, from a model's shape and an accelerator's data.

Memory comes from the engine's own ledger (`octavo.core.cache_plan`). Rates are roofline bounds: the
longer of moving the bytes and computing the operations. Real engines stay below them.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.core.cache_plan import GIB, CachePlan
from octavo.core.model_spec import ModelSpec
from octavo.core.types import DtypeName, KvDtypeName


class Accelerator(NamedTuple):
    """One device, by its maker's data sheet."""

    memory_bytes: int
    bandwidth: float
    """Bytes a second."""
    flops: float
    """Dense 16-bit operations a second."""


ACCELERATORS = {
    "a100-40gb": Accelerator(40 * GIB, 1.555e12, 312e12),
    "a100-80gb": Accelerator(80 * GIB, 2.039e12, 312e12),
    "h100-sxm": Accelerator(80 * GIB, 3.35e12, 989e12),
}
"""SXM variants, by NVIDIA's data sheets; operations without sparsity."""


class Rates(NamedTuple):
    """Bounds for one batch size."""

    batch: int
    decode_tokens_per_s: float
    """Of all requests together."""


def contiguous_requests(plan: CachePlan) -> int:
    """Requests that fit if each reserves room for the longest one in one piece."""
    return int(plan.num_requests(plan.max_model_len))


def paged_requests(plan: CachePlan, request_tokens: int) -> int:
    """Requests of this many tokens that fit when blocks are taken on demand."""
    return int(plan.num_requests(request_tokens))


def decode_rate(
    spec: ModelSpec,
    device: Accelerator,
    batch: int,
    context: int,
    *,
    dtype: DtypeName,
    kv_dtype: KvDtypeName,
) -> Rates:
    """The bound for a step in which ``batch`` requests of ``context`` tokens decode one each."""
    moved = spec.weight_bytes(dtype) + batch * context * spec.kv_bytes_per_token(kv_dtype)
    seconds = max(moved / device.bandwidth, batch * spec.decode_flops(context) / device.flops)
    return Rates(batch, batch / seconds)


def prefill_rate(spec: ModelSpec, device: Accelerator, prompt: int) -> float:
    """The bound in prompt tokens a second, for prompts of this length; each token attends to half
    of its prompt on average."""
    return device.flops / spec.decode_flops(prompt // 2)
