"""Counts of what the scheduler did, taken and reset by the engine after every step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepCounters:
    """What happened since the last step, for `octavo.metrics.stats.StepStats`."""

    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
