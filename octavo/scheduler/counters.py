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
    num_resume_queries: int = 0
    num_resume_hits: int = 0
    num_forked_tokens: int = 0
    drafted: list[int] = field(default_factory=list)
    """By position in a draft: tokens guessed."""
    accepted: list[int] = field(default_factory=list)
    """By position in a draft: guesses that were right."""
    draft_lengths: list[int] = field(default_factory=list)
    """By number of guesses, 0 included: rows that might have been guessed for."""

    def count_looked_up(self, num_known: int, num_found: int, *, is_first: bool) -> None:
        """A request was admitted, for the first time or again; so many of its known tokens were
        found in the prefix cache."""
        if is_first:
            self.num_prefix_queries += num_known
            self.num_prefix_hits += num_found
        else:
            self.num_resume_queries += num_known
            self.num_resume_hits += num_found

    def count_draft_length(self, num_tokens: int) -> None:
        """So many tokens are guessed for a row that generates one for sure."""
        missing = num_tokens + 1 - len(self.draft_lengths)
        if missing > 0:
            self.draft_lengths += [0] * missing
        self.draft_lengths[num_tokens] += 1

    def count_draft(self, num_accepted: int, num_drafted: int) -> None:
        """Books one draft."""
        missing = num_drafted - len(self.drafted)
        if missing > 0:
            self.drafted += [0] * missing
            self.accepted += [0] * missing
        for position in range(num_drafted):
            self.drafted[position] += 1
            self.accepted[position] += position < num_accepted
