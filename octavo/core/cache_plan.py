"""How many KV blocks fit: the memory ledger, a pure function of sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.config import CacheConfig
from octavo.core.errors import CapacityError
from octavo.core.model_spec import ModelSpec
from octavo.core.types import KvDtypeName

GIB = 1 << 30
TYPICAL_REQUEST_TOKENS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What a device's memory is spent on before the KV cache gets its share; in bytes."""

    total_bytes: int
    """What the device has, or what the control group allows this process."""
    weight_bytes: int
    activation_bytes: int
    """Peak of temporary tensors in a step of the largest size."""
    other_bytes: int = 0
    """Other processes on a GPU; interpreter and libraries on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """The size of the KV cache, and the ledger that led to it."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    max_model_len: int
    utilization: float
    memory: MemoryUse

    @property
    def num_tokens(self) -> int:
        """Token slots in all blocks."""
        return self.num_blocks * self.block_size

    @property
    def cache_bytes(self) -> int:
        """Bytes of K and V in all blocks and layers."""
        return self.num_blocks * self.bytes_per_block

    def num_requests(self, tokens: int) -> float:
        """Requests of this many tokens that fit at the same time, without sharing."""
        return self.num_blocks / max(1, -(-tokens // self.block_size))

    def ledger(self) -> list[tuple[str, str]]:
        """(what, how much) rows for people, in the order in which memory is given out."""
        memory = self.memory
        may_use = int(memory.total_bytes * self.utilization)
        longest, typical = self.max_model_len, TYPICAL_REQUEST_TOKENS
        return [
            ("memory", _gib(memory.total_bytes)),
            ("may use", f"{_gib(may_use)} ({self.utilization:.0%})"),
            ("weights", _gib(memory.weight_bytes)),
            ("activations", _gib(memory.activation_bytes)),
            ("other", _gib(memory.other_bytes)),
            ("KV cache", _gib(self.cache_bytes)),
            ("blocks", f"{self.num_blocks:,} of {self.block_size} tokens"),
            ("tokens", f"{self.num_tokens:,}"),
            (f"requests of {longest:,}", f"{self.num_requests(longest):,.1f}"),
            (f"requests of {typical:,}", f"{self.num_requests(typical):,.1f}"),
        ]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"


def plan_cache(
    spec: ModelSpec,
    config: CacheConfig,
    kv_dtype: KvDtypeName,
    memory: MemoryUse,
    *,
    default_utilization: float,
    max_model_len: int | None,
    draft_bytes_per_token: int = 0,
) -> CachePlan:
    """Sizes the KV cache from explicit blocks, explicit bytes, or the share of memory left over.

    Args:
        max_model_len: longest request wanted; None for the longest that fits, up to the model's.
        draft_bytes_per_token: K and V of a draft model that shares the block tables.

    Raises:
        CapacityError: not even one request of ``max_model_len`` fits; the message holds the ledger
            and the settings that would make it fit.
    """
    bytes_per_token = spec.kv_bytes_per_token(kv_dtype) + draft_bytes_per_token
    bytes_per_block = bytes_per_token * config.block_size
    share = config.memory_utilization or default_utilization
    if config.num_blocks is not None:
        num_blocks = config.num_blocks
    elif config.kv_cache_memory is not None:
        num_blocks = config.kv_cache_memory // bytes_per_block
    else:
        spent = memory.weight_bytes + memory.activation_bytes + memory.other_bytes
        num_blocks = max(0, int(memory.total_bytes * share) - spent) // bytes_per_block
    capacity = num_blocks * config.block_size
    plan = CachePlan(
        num_blocks=num_blocks,
        block_size=config.block_size,
        bytes_per_block=bytes_per_block,
        max_model_len=min(spec.max_position, capacity) if max_model_len is None else max_model_len,
        utilization=share,
        memory=memory,
    )
    if num_blocks < 1 or plan.max_model_len > capacity:
        raise CapacityError(_does_not_fit(plan, capacity))
    return plan


def _does_not_fit(plan: CachePlan, capacity: int) -> str:
    needed = -(-max(plan.max_model_len, 1) // plan.block_size) * plan.bytes_per_block
    ledger = "\n".join(f"  {what:<22} {amount}" for what, amount in plan.ledger())
    return (
        f"the KV cache holds {capacity:,} tokens, but one request of max_model_len "
        f"{plan.max_model_len:,} needs {_gib(needed)}:\n{ledger}\n"
        f"Lower max_model_len to {capacity:,} or less (or 'auto'), raise memory_utilization "
        f"(now {plan.utilization:g}), or use a smaller kv_cache_dtype."
    )
