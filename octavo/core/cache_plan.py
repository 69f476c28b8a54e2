"""How many KV blocks fit: the memory ledger, a pure function of sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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

    @property
    def free_bytes(self) -> int:
        """What a KV cache could have at most."""
        spent = self.weight_bytes + self.activation_bytes + self.other_bytes
        return max(0, self.total_bytes - spent)


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
        CapacityError: not even one request of ``max_model_len`` fits, or the machine has not the
            memory for as much cache as was asked for; the message holds the ledger and the settings
            that would make it fit.
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
        raise CapacityError(_too_few_blocks(plan, config))
    if plan.cache_bytes > memory.free_bytes:
        raise CapacityError(_too_many_blocks(plan, config))
    return plan


def _too_few_blocks(plan: CachePlan, config: CacheConfig) -> str:
    """Why not even one request fits, and the settings that would change it."""
    longest = max(plan.max_model_len, 1)
    wanted = -(-longest // plan.block_size)
    wanted_bytes = wanted * plan.bytes_per_block
    advice = []
    if plan.num_tokens:
        advice.append(f"lower max_model_len to {plan.num_tokens:,} or less (or 'auto')")
    if config.num_blocks is not None:
        advice.append(f"raise num_blocks (now {config.num_blocks:,}) to {wanted:,} or more")
    elif config.kv_cache_memory is not None:
        now = f"{config.kv_cache_memory:,} bytes"
        advice.append(f"raise kv_cache_memory (now {now}) to {wanted_bytes:,} or more")
    else:
        advice.append(f"raise memory_utilization (now {plan.utilization:g})")
    if config.num_blocks is None:
        advice.append("use a smaller kv_cache_dtype")
    what = f"one request of max_model_len {longest:,}" if plan.num_tokens else "a single block"
    return (
        f"the KV cache holds {plan.num_tokens:,} tokens, but {what} needs "
        f"{_gib(wanted_bytes)}:\n{_table(plan)}\n{_sentence(advice)}"
    )


def _too_many_blocks(plan: CachePlan, config: CacheConfig) -> str:
    """Why the machine cannot hold as many blocks as were asked for."""
    name, memory = _explicit(config), plan.memory
    most = memory.free_bytes // plan.bytes_per_block
    limit = f"{most:,}" if name == "num_blocks" else f"{most * plan.bytes_per_block:,} bytes"
    advice = [f"lower {name} to {limit} or less", f"leave {name} out"]
    if not most:
        advice = ["use a smaller model, or a machine with more memory"]
    return (
        f"{name} asks for a KV cache of {_gib(plan.cache_bytes)} ({plan.num_blocks:,} blocks), but "
        f"of this machine's {_gib(memory.total_bytes)} only {_gib(memory.free_bytes)} are left for "
        f"it:\n{_table(plan)}\n{_sentence(advice)}"
    )


def _explicit(config: CacheConfig) -> Literal["num_blocks", "kv_cache_memory"] | None:
    """The setting that gives the cache's size outright."""
    if config.num_blocks is not None:
        return "num_blocks"
    return None if config.kv_cache_memory is None else "kv_cache_memory"


def _table(plan: CachePlan) -> str:
    return "\n".join(f"  {what:<22} {amount}" for what, amount in plan.ledger())


def _sentence(advice: list[str]) -> str:
    text = ", or ".join(advice)
    return f"{text[0].upper()}{text[1:]}."
