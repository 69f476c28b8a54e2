"""What the engine reports about each step: the one source for metrics, dashboards and benches."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.plan import StepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Where the KV blocks are. ``free + cached + used == total`` always."""

    num_total_blocks: int
    num_free_blocks: int
    """Hold nothing worth keeping."""
    num_cached_blocks: int
    """Referenced by no request, but findable by prefix until evicted."""
    num_used_blocks: int
    """Referenced by at least one request."""

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0 to 1."""
        return self.num_used_blocks / self.num_total_blocks if self.num_total_blocks else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One step in numbers. Counters count this step alone; gauges are as of its end."""

    step_id: int
    num_running: int
    num_waiting: int
    cache: CacheStats
    num_rows: int = 0
    num_tokens: int = 0
    """Tokens computed, whatever they belong to."""
    num_prompt_tokens: int = 0
    """Tokens computed that were part of a prompt (again after preemption included)."""
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    """Prompt tokens of requests that began, looked up in the prefix cache."""
    num_prefix_hits: int = 0
    """Those of them that were found."""
    num_resume_queries: int = 0
    """Known tokens of requests that came back after a preemption, looked up there."""
    num_resume_hits: int = 0
    num_forked_tokens: int = 0
    """Tokens that completions took over from the one that computed their common prompt."""
    drafted: tuple[int, ...] = ()
    """Speculative decoding: tokens guessed, by position in the draft."""
    accepted: tuple[int, ...] = ()
    """Those that were right."""
    draft_lengths: tuple[int, ...] = ()
    """Rows that might have been guessed for, by number of guesses, 0 included."""
    schedule_s: float = 0.0
    commit_s: float = 0.0
    executor: StepTimes = field(default_factory=StepTimes)
