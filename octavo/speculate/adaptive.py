"""How long a draft should be: as long as it makes the batch generate more tokens a second.

A draft's j-th token is kept with probability q^j, where q is the share of guesses that were right,
so a row with k guesses generates 1 + q + ... + q^k tokens a step (Leviathan et al., "Fast Inference
from Transformers via Speculative Decoding", 2023, section 3.1). What such a step costs is learned:
while decoding is bound by memory guesses are nearly free, in a large batch each takes its time, and
where a model makes them, each makes a pass of that model over the batch.
"""

from __future__ import annotations

from collections.abc import Collection

from octavo.core.types import RequestId
from octavo.speculate.cost import Drift, StepCost

_PRIOR_GUESSES = 4.0
"""How many guesses the experience with other requests counts as for a new one."""
_REMEMBERED = 32.0
"""Guesses of a request that are remembered about: the more recent count for more."""
_GAIN = 1.02
"""A draft must promise this many times the speed of none: times are noisy, and no draft is safe."""
_PROBE_EVERY = (64, 1024)
"""Steps after which a short draft is tried where none pays: at first, and at last."""
_PLAIN_EVERY = 64
"""Steps with drafts after which there is one without, so that its cost stays known."""
_PROBE_SHARE = 8
"""One row of so many takes part in a probe that a model has to make a pass for."""


class Acceptance:
    """How often guesses are right: a share of recent ones."""

    __slots__ = ("_right", "_total", "probe")

    def __init__(self, prior: float) -> None:
        self._right, self._total = prior * _PRIOR_GUESSES, _PRIOR_GUESSES
        self.probe = Probe()

    @property
    def share(self) -> float:
        """q, between 0 and 1."""
        return self._right / self._total

    def observe(self, num_accepted: int, num_drafted: int) -> None:
        """Of a draft, so many tokens were kept; the one after them was the only wrong guess."""
        judged = num_accepted + (num_accepted < num_drafted)
        fading = max(0.0, 1 - judged / _REMEMBERED)
        self._right = self._right * fading + num_accepted
        self._total = self._total * fading + judged


class Probe:
    """When to try what did not pay; less often each time that it did not."""

    __slots__ = ("_interval", "_num_steps")

    def __init__(self) -> None:
        self._interval, self._num_steps = _PROBE_EVERY[0], 0

    def is_due(self, length: int) -> bool:
        """Whether to draft after all; ``length`` is what pays in this step."""
        if length > 0:
            self._interval, self._num_steps = _PROBE_EVERY[0], 0
            return False
        self._num_steps += 1
        if self._num_steps < self._interval:
            return False
        self._interval, self._num_steps = min(2 * self._interval, _PROBE_EVERY[1]), 0
        return True


class DraftLengths:
    """Chooses lengths for the requests of one engine.

    Args:
        longest: guesses of a draft at most.
        by_model: whether a model makes the guesses, for all rows in the same passes: they get the
            same number then. Else each request has its own.
    """

    def __init__(self, longest: int, *, by_model: bool = False) -> None:
        self._longest = longest
        self._by_model = by_model
        drift = Drift()
        self._step_cost, self._pass_cost = StepCost(drift), StepCost(drift)
        self._all = Acceptance(0.5)
        self._requests: dict[RequestId, Acceptance] = {}
        self._share_drafted = 1.0
        """Of the rows that may draft, those for which there is something to guess."""
        self._drafting = 1.0
        """The same in the step under construction, of which one row drafts at least."""
        self._costs: list[float] = []
        """Seconds of the step under construction, by length of its drafts."""
        self._has_drafted = self._is_plain = False
        """Whether the last step had drafts, and whether this one must have none."""
        self._num_drafted_steps = 0
        self._chosen: dict[RequestId, int] = {}
        """Of the step under construction, where a model makes the drafts."""

    def begin_step(self, request_ids: Collection[RequestId]) -> None:
        """These requests have one token to compute in the next step, and may draft."""
        self._num_drafted_steps += self._has_drafted
        self._has_drafted = False
        self._is_plain = self._num_drafted_steps >= _PLAIN_EVERY
        if self._is_plain:
            self._num_drafted_steps = 0
        rows = max(1, len(request_ids))
        one_pass = self._pass_cost.seconds(rows) if self._by_model else 0.0
        self._drafting = max(self._share_drafted, 1 / rows)
        self._costs = [
            self._step_cost.seconds(rows * (1 + self._drafting * k)) + k * one_pass
            for k in range(self._longest + 1)
        ]
        if self._by_model:
            self._chosen = self._choose_for_all(request_ids)

    def choose(self, request_id: RequestId) -> int:
        """Tokens to guess for one of them."""
        if self._is_plain:
            return 0
        if self._by_model:
            return self._chosen.get(request_id, 0)
        acceptance = self._acceptance(request_id)
        length = self._best(acceptance.share)
        return 1 if acceptance.probe.is_due(length) else length

    def observe_guess(self, *, is_made: bool) -> None:
        """For a request that was to draft, there was something to guess, or not."""
        self._share_drafted += 0.02 * (is_made - self._share_drafted)

    def observe_draft(self, request_id: RequestId, num_accepted: int, num_drafted: int) -> None:
        """What became of a request's draft."""
        self._has_drafted = True
        self._acceptance(request_id).observe(num_accepted, num_drafted)
        self._all.observe(num_accepted, num_drafted)

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """What a step took, without drafting."""
        self._step_cost.observe(num_tokens, seconds)

    def observe_drafting(self, num_rows: int, num_passes: int, seconds: float) -> None:
        """What drafting took, by a model that went over so many rows at first."""
        self._pass_cost.observe(num_rows, seconds / num_passes)

    def forget(self, request_id: RequestId) -> None:
        """The request has ended."""
        self._requests.pop(request_id, None)

    def _choose_for_all(self, request_ids: Collection[RequestId]) -> dict[RequestId, int]:
        if not request_ids:
            return {}
        shares = [self._acceptance(name).share for name in request_ids]
        length = self._best(sum(shares) / len(shares))
        if self._all.probe.is_due(length):
            return dict.fromkeys(list(request_ids)[::_PROBE_SHARE], 1)
        return dict.fromkeys(request_ids, length)

    def _best(self, share: float) -> int:
        """The length with the most tokens a second, for rows with this share of right guesses."""
        best, best_speed = 0, _GAIN / max(self._costs[0], 1e-9)
        tokens, chance = 1.0, 1.0
        for length in range(1, self._longest + 1):
            chance *= share
            tokens += chance * self._drafting
            speed = tokens / max(self._costs[length], 1e-9)
            if speed > best_speed:
                best, best_speed = length, speed
        return best

    def _acceptance(self, request_id: RequestId) -> Acceptance:
        found = self._requests.get(request_id)
        if found is None:
            found = self._requests[request_id] = Acceptance(self._all.share)
        return found
