"""What an engine says of itself when somebody asks: every request and every block, as of one
moment between two steps. Nothing here is kept up to date while nobody does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.core.types import BlockId, RequestId, TokenId
from octavo.metrics.stats import CacheStats

RowState = Literal["running", "waiting", "preparing"]
"""Running requests hold blocks; waiting ones hold none, whether they are new, preempted, or wait
for a sibling's prompt; for preparing ones a grammar is being made."""

BLOCK_STATES = ("free", "cached", "used", "used, findable", "used, draft")
"""What the numbers in `BlockMap.states` stand for. A draft block is one that the last step wrote
guesses into."""


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
    max_tokens: int | None
    """Most tokens that it may generate; None for as many as the context holds."""
    num_drafted_tokens: int
    """Tokens that were guessed for it."""
    num_accepted_tokens: int
    """Those of them that were right."""
    age_s: float
    queue_s: float | None
    """From arrival to the first step."""
    first_token_s: float | None
    """From arrival to the first token."""
    inter_token_s: float | None
    """Mean time between tokens so far."""
    prompt_head: tuple[TokenId, ...] = ()
    """The first tokens of the prompt, and"""
    output_tail: tuple[TokenId, ...] = ()
    """the last ones of the output; only for those who asked for them."""


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
    num_contiguous_slots: int
    """What running requests would hold if each had to have its longest possible output reserved
    in one piece: prompt and ``max_tokens``, or the whole context."""
    rows: tuple[RequestRow, ...]
    """Running requests first, then waiting ones, both in order of arrival; as many as asked for."""
    process: ProcessUse
    blocks: BlockMap | None = None
    """If it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChanges:
    """Blocks that have changed, in arrays of little-endian numbers: one entry a block."""

    ids: bytes
    """Four bytes."""
    states: bytes
    """As in `BlockMap`, and so are these:"""
    num_tokens: bytes
    ref_counts: bytes
    hashes: bytes
    """Four bytes: the beginning of the block's hash; zeros for a block without."""
    changed_s: bytes
    """Eight bytes, a float: when it was taken, or given back by its last holder, by the engine's
    clock; 0 for a block that was never used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """A request's block table from entry ``first`` on, to its end."""

    request_id: RequestId
    first: int
    blocks: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChanges:
    """What has changed since the last time, for somebody who watches."""

    is_first: bool
    """Whether there was no last time: what is not in here is free, and holds nothing."""
    now_s: float
    """The engine's clock."""
    snapshot: EngineSnapshot
    """How things stand, but for the blocks."""
    blocks: BlockChanges
    tables: tuple[TableChange, ...]
    """Of running requests. Those that run no more have none."""
    cost_s: float
    """What this answer took."""
