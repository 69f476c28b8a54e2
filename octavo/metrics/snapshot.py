"""What an engine says of itself when somebody asks: every request and every block, as of one
moment between two steps. Nothing here is kept up to date while nobody does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.core.types import RequestId
from octavo.metrics.stats import CacheStats

RowState = Literal["running", "waiting", "preparing"]
"""Running requests hold blocks; waiting ones hold none, whether they are new, preempted, or wait
for a sibling's prompt; for preparing ones a grammar is being made."""

BLOCK_STATES = ("free", "cached", "used", "used, findable")
"""What the numbers in `BlockMap.states` stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One completion. Times are in seconds, as the engine sees them."""

    id: RequestId
    state: RowState
    priority: int
    num_prompt_tokens: int
    num_cached_tokens: int | None
    """Prompt tokens that were found in the prefix cache, or come from a sibling; None before the
    first step."""
    num_computed_tokens: int
    """Known tokens whose K and V are in the cache."""
    num_generated_tokens: int
    num_blocks: int
    num_wasted_slots: int
    """Slots of its blocks that hold no token of it."""
    num_preemptions: int
    age_s: float
    queue_s: float | None
    """From arrival to the first step."""
    first_token_s: float | None
    """From arrival to the first token."""
    inter_token_s: float | None
    """Mean time between tokens so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMap:
    """Every block of a range, in arrays of little-endian numbers: one entry a block."""

    first: int
    states: bytes
    """One byte: an index into `BLOCK_STATES`."""
    num_tokens: bytes
    """One byte: tokens in the block; what is missing to the block's size is wasted, or free."""
    ref_counts: bytes
    """Two bytes: requests that hold the block, 65,535 at most."""
    owners: bytes
    """Four bytes, signed: an index into ``owner_ids``; -1 for a block that nobody holds. Of several
    holders the one that has run longest counts."""
    owner_ids: tuple[RequestId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """What the engine's process uses."""

    pid: int
    resident_bytes: int | None
    """None where the system does not say."""
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """All that there is to know between two steps."""

    step_id: int
    """The last step that ran; -1 before the first."""
    block_size: int
    cache: CacheStats
    num_running: int
    num_waiting: int
    num_wasted_slots: int
    """Slots of used blocks that hold no token; a shared block counts once."""
    num_shared_blocks: int
    """Blocks that several requests hold."""
    rows: tuple[RequestRow, ...]
    """Running requests first, then waiting ones, both in order of arrival; as many as asked for."""
    process: ProcessUse
    blocks: BlockMap | None = None
    """If it was asked for."""
