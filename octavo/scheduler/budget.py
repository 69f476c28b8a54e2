"""What is left of a step: tokens, and how much of it one long prompt may take."""

from __future__ import annotations

from octavo.core.config import SchedulerConfig
from octavo.scheduler.pace import Allowance


class StepBudget:
    """Tokens that the step under construction may still compute."""

    __slots__ = ("_config", "allowance", "num_long_prompts", "num_tokens", "short_prompts_wait")

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.num_tokens = config.token_budget()
        self.num_long_prompts = 0
        """Long prompts in progress, whether they have a row in this step or not."""
        self.short_prompts_wait = False
        """Whether anyone is in line who could use what a long prompt leaves."""
        self.allowance: Allowance | None = None
        """What the time that streams may wait leaves for prompts, if that is limited."""

    @property
    def is_spent(self) -> bool:
        """Whether nothing more fits."""
        return self.num_tokens == 0 or (self.allowance is not None and self.allowance.is_spent)

    def is_long(self, num_remaining_tokens: int) -> bool:
        """Whether so much work makes a request count as a long prompt; whole prompts never do."""
        if not self._config.enable_chunked_prefill:
            return False
        threshold = self._config.long_prefill_token_threshold
        return 0 < threshold < num_remaining_tokens

    @property
    def admits_long_prompt(self) -> bool:
        """Whether one more long prompt may be in progress."""
        return self.num_long_prompts < self._config.max_long_partial_prefills

    def grant(self, num_remaining_tokens: int, start: int = 0) -> int:
        """How many of so many tokens, from position ``start`` on, a request may compute in this
        step; 0 if it is full.

        A long prompt takes half of a step at most while short ones wait, so that they keep flowing
        past it.
        """
        largest = self._config.token_budget()
        if self.allowance is not None:
            largest = self.allowance.tokens(start, largest)
        wanted = min(num_remaining_tokens, largest)
        if self.short_prompts_wait and self.is_long(num_remaining_tokens):
            wanted = min(wanted, max(1, largest // 2))
        return min(wanted, self.num_tokens)

    def spend(self, start: int, num_tokens: int) -> None:
        """So many tokens of a request, from position ``start`` on, are planned."""
        self.num_tokens -= num_tokens
        if self.allowance is not None:
            self.allowance.spend(start, num_tokens)
