"""How long a draft should be: as long as its next token is worth the time that it takes.

Two things are learned while the engine runs. A step takes ``a + b * tokens`` seconds: while decoding
is bound by memory, b is small and drafts are nearly free; in a large batch it is not. And each
request's drafts are kept up to a length that depends on its text. A draft's j-th token is kept with
probability q^j, where q is the share of the request's guesses that were right, so it adds q^j tokens
to a step that becomes b seconds longer; it pays if that is more than the batch makes in b seconds
otherwise (the marginal form of Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding", 2023, theorem 3.8, for a batch).
"""

from __future__ import annotations

from octavo.core.types import RequestId

_FORGET = 0.99
"""Weight of the past after each step, in what is known of steps' times."""
_PRIOR_GUESSES = 4.0
"""How many guesses the experience with other requests counts as for a new one."""
_REMEMBERED = 32.0
"""Guesses of a request that are remembered about: the more recent count for more."""
_PROBE_EVERY = 64
"""Steps after which a request whose drafts do not pay tries a short one again."""
_MIN_STEPS = 8
"""Steps to see before their times are believed."""


class StepCost:
    """``a + b * tokens`` seconds, fitted to recent steps by least squares."""

    __slots__ = ("_n", "_t", "_tt", "_y", "_yt")

    def __init__(self) -> None:
        self._n = self._t = self._tt = self._y = self._yt = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        for name, value in (
            ("_n", 1.0),
            ("_t", num_tokens),
            ("_tt", num_tokens * num_tokens),
            ("_y", seconds),
            ("_yt", seconds * num_tokens),
        ):
            setattr(self, name, getattr(self, name) * _FORGET + value)

    @property
    def is_known(self) -> bool:
        """Whether enough steps of different sizes have been seen."""
        return self._n >= _MIN_STEPS and self._spread > 0.01 * self._n

    @property
    def per_token_s(self) -> float:
        """b."""
        return max(0.0, (self._yt - self._t * self._y / self._n) / self._spread)

    def seconds(self, num_tokens: float) -> float:
        """Of a step of so many tokens; never less than any token's own time."""
        b = self.per_token_s
        a = max(0.0, (self._y - b * self._t) / self._n)
        return a + b * num_tokens

    @property
    def _spread(self) -> float:
        return self._tt - self._t * self._t / self._n


class Acceptance:
    """How often guesses are right: a share of recent ones."""

    __slots__ = ("_right", "_total", "steps_without")

    def __init__(self, prior: float) -> None:
        self._right, self._total = prior * _PRIOR_GUESSES, _PRIOR_GUESSES
        self.steps_without = 0
        """Steps since the last draft."""

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


class DraftLengths:
    """Chooses lengths for the requests of one engine."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._cost = StepCost()
        self._all = Acceptance(0.5)
        self._requests: dict[RequestId, Acceptance] = {}

    def choose(self, request_id: RequestId, num_tokens: int, num_rows: int) -> int:
        """Tokens to guess for a request, in a step of so many tokens and rows without guesses."""
        acceptance = self._acceptance(request_id)
        acceptance.steps_without += 1
        if not self._cost.is_known:
            # Short and long steps alternate until their times tell what a token costs.
            return self._longest if acceptance.steps_without % 2 else 0
        worth = self._cost.per_token_s * num_rows / max(self._cost.seconds(num_tokens), 1e-9)
        length, chance = 0, acceptance.share
        while length < self._longest and chance > worth:
            length += 1
            chance *= acceptance.share
        if length == 0 and acceptance.steps_without >= _PROBE_EVERY:
            return 1
        return length

    def observe_draft(self, request_id: RequestId, num_accepted: int, num_drafted: int) -> None:
        """What became of a request's draft."""
        acceptance = self._acceptance(request_id)
        acceptance.steps_without = 0
        acceptance.observe(num_accepted, num_drafted)
        self._all.observe(num_accepted, num_drafted)

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """What a step took."""
        self._cost.observe(num_tokens, seconds)

    def forget(self, request_id: RequestId) -> None:
        """The request has ended."""
        self._requests.pop(request_id, None)

    def _acceptance(self, request_id: RequestId) -> Acceptance:
        found = self._requests.get(request_id)
        if found is None:
            found = self._requests[request_id] = Acceptance(self._all.share)
        return found
