"""A step as a timeline tells of it. Times are in seconds of the engine's clock.

No event holds a token of a prompt or of an output: only how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from octavo.core.plan import BlockCopy, StepTimes
from octavo.core.types import AdmissionStop, BlockId, FinishReason, PolicyName, RequestId
from octavo.metrics.stats import StepStats


class AdmissionEvent(NamedTuple):
    """A completion that gets blocks in this step: for the first time, or again."""

    request_id: RequestId
    arrival_s: float
    num_prompt_tokens: int
    num_cached_tokens: int
    """Tokens that it need not compute: from the prefix cache, or from a sibling."""
    block_ids: tuple[BlockId, ...]
    """The blocks that hold them."""
    is_resumed: bool = False
    """Whether it was preempted before."""


class RowEvent(NamedTuple):
    """One row of a step, and what came of it."""

    request_id: RequestId
    start: int
    """Tokens computed before."""
    num_new_tokens: int
    num_known_tokens: int
    """When the step was planned, without guesses."""
    num_prompt_tokens: int
    num_draft_tokens: int
    num_sampled: int
    """Tokens that became known."""
    new_block_ids: tuple[BlockId, ...]

    @property
    def num_accepted(self) -> int:
        """Guesses that were right."""
        return max(0, self.num_sampled - 1) if self.num_draft_tokens else 0


class PreemptionEvent(NamedTuple):
    """Somebody who gave back all blocks while the step was planned."""

    request_id: RequestId
    for_id: RequestId
    """Who needed them: itself, if nobody ranks behind it."""
    num_blocks: int


class EndEvent(NamedTuple):
    """A completion that has ended, and gives back its blocks."""

    request_id: RequestId
    reason: FinishReason
    num_blocks: int


class TrimEvent(NamedTuple):
    """A block table that lost the blocks of wrong guesses at its end."""

    request_id: RequestId
    num_kept: int


class BlockStates(NamedTuple):
    """Blocks that the step, or what came before it, has changed, by what they are afterwards."""

    free: tuple[BlockId, ...]
    cached: tuple[BlockId, ...]
    """Held by nobody, but findable by prefix."""
    used: tuple[BlockId, ...]
    findable: tuple[BlockId, ...]
    """Used, and findable by prefix."""


class Holding(NamedTuple):
    """A completion that was running when the recording began."""

    request_id: RequestId
    num_prompt_tokens: int
    block_ids: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """How things stood when the recording began."""

    oldest_s: float
    """When the first of the unfinished requests arrived, or now."""
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    target_itl_ms: float | None
    policy: PolicyName
    running: tuple[Holding, ...]
    blocks: BlockStates
    """All that are not free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """One step that was planned, and what became of it."""

    step_id: int
    began_s: float
    planned_s: float
    collected_s: float
    ended_s: float
    times: StepTimes
    rows: tuple[RowEvent, ...]
    admitted: tuple[AdmissionEvent, ...]
    preempted: tuple[PreemptionEvent, ...]
    copies: tuple[BlockCopy, ...]
    left: tuple[RequestId, ...]
    """Those that held blocks and were ended since the step before, by an abort for instance."""
    ended: tuple[EndEvent, ...]
    trimmed: tuple[TrimEvent, ...]
    line: tuple[RequestId, ...]
    """The first of those that wait once the step is planned, in their order."""
    num_in_line: int
    stopped: AdmissionStop | None
    """Why nobody more was taken out of the line; None if it is empty."""
    blocks: BlockStates
    stats: StepStats
    beginning: Beginning | None = None
    """With the first step of a recording."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computed."""
        return sum(row.num_new_tokens for row in self.rows)
