"""Counts of what the scheduler did, taken and reset by the engine after every step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class StepCounters:
    """What happened since the last step, for `octavo.metrics.stats.StepStats`."""

    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    drafted: list[int] = field(default_factory=list)
    """By position in a draft: tokens guessed."""
    accepted: list[int] = field(default_factory=list)
    """By position in a draft: guesses that were right."""

    def count_draft(self, num_accepted: int, num_drafted: int) -> None:
        """Books one draft."""
        missing = num_drafted - len(self.drafted)
        if missing > 0:
            self.drafted += [0] * missing
            self.accepted += [0] * missing
        for position in range(num_drafted):
            self.drafted[position] += 1
            self.accepted[position] += position < num_accepted
