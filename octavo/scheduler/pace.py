"""How many tokens of prompts fit into the time that running streams may wait for their next token.

The cost of a step is learned while the engine runs: ``a + b rows + c tokens + d pairs`` seconds,
where pairs counts the tokens that each computed token attends to, fitted by least squares to recent
steps. Steps with and without prompts are remembered apart, so that a long stretch of one kind does
not make the other forgotten. What the fit misses (other processes, caches) is learned too, as the
ratio that all but a twentieth of the steps stay under; prompts get what it leaves of the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.core.plan import ScheduledRequest

_KEPT = 0.98
"""Weight of the past after each step of a kind."""
_SCALES = np.array([1.0, 1 / 16, 1 / 256, 1e-5])
"""Of the terms, so that they are of about the same size."""
_RIDGE = 1e-6
_QUANTILE = 0.95
_RATIO_STEP = 0.02
_MAX_RATIO = 2.0
_MIN_STEPS = 6
"""Steps to see before the fit is believed."""
_FIRST_CHUNK = 64
"""Tokens of prompts in a step before that."""
_MIN_CHUNK = 16
"""Tokens of prompts that every step may compute, whatever the streams wait: else prompts starve."""


class Work(NamedTuple):
    """What a step computes."""

    rows: int = 0
    tokens: int = 0
    pairs: float = 0.0

    def plus(self, start: int, num_tokens: int) -> Work:
        """With a row more: ``num_tokens`` from position ``start`` on."""
        return Work(self.rows + 1, self.tokens + num_tokens, self.pairs + _pairs(start, num_tokens))


class StepTimes:
    """The fit."""

    def __init__(self) -> None:
        # One for each kind of step: sums of x x^T and of x y, both relative to y.
        self._squares = np.zeros((2, 4, 4))
        self._products = np.zeros((2, 4))
        self._num_steps = 0
        self._terms: npt.NDArray[np.float64] | None = None

    @property
    def is_known(self) -> bool:
        """Whether enough steps have been seen."""
        return self._num_steps >= _MIN_STEPS

    def observe(self, work: Work, seconds: float, *, has_prompts: bool) -> None:
        """A step took so long."""
        if seconds <= 0:
            return
        x = np.array([1.0, *work]) * _SCALES / seconds
        kind = int(has_prompts)
        self._squares[kind] = _KEPT * self._squares[kind] + np.outer(x, x)
        self._products[kind] = _KEPT * self._products[kind] + x
        self._num_steps += 1
        self._terms = None

    @property
    def terms(self) -> npt.NDArray[np.float64]:
        """a, b, c, d; none is negative."""
        if self._terms is None:
            self._terms = self._fit() * _SCALES
        return self._terms

    def _fit(self) -> npt.NDArray[np.float64]:
        """Least squares; a term that would be negative is left out, the worst first."""
        squares, products = self._squares.sum(0), self._products.sum(0)
        squares = squares + _RIDGE * max(np.trace(squares), 1e-30) * np.eye(4)
        kept = np.arange(4)
        while len(kept):
            found = np.linalg.solve(squares[np.ix_(kept, kept)], products[kept])
            if found.min() >= 0:
                terms = np.zeros(4)
                terms[kept] = found
                return terms
            kept = np.delete(kept, found.argmin())
        return np.zeros(4)


class Pace:
    """Learns what steps cost, and limits prompts in steps that streams wait for."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._times = StepTimes()
        self._ratio = 1.0

    def allowance(self, rows: Iterable[ScheduledRequest]) -> Allowance | None:
        """What prompts may compute in a step beside these rows, all of streams; None for no limit,
        since nobody waits."""
        decodes, _ = split_work(rows)
        if not decodes.rows:
            return None
        if not self._times.is_known:
            return Allowance(np.array([0.0, 0.0, 1.0, 0.0]), float(_FIRST_CHUNK))
        terms = self._times.terms
        left_s = self._target_s / self._ratio - float(terms @ np.array([1.0, *decodes]))
        return Allowance(terms, left_s)

    def observe(self, rows: Iterable[ScheduledRequest], seconds: float) -> None:
        """A step of these rows took so long."""
        decodes, prompts = split_work(rows)
        work = Work(
            decodes.rows + prompts.rows,
            decodes.tokens + prompts.tokens,
            decodes.pairs + prompts.pairs,
        )
        if self._times.is_known and decodes.rows and prompts.rows:
            predicted_s = float(self._times.terms @ np.array([1.0, *work]))
            is_under = seconds <= predicted_s * self._ratio
            step = _RATIO_STEP * (1 - _QUANTILE if is_under else -_QUANTILE)
            self._ratio = min(_MAX_RATIO, max(1.0, self._ratio * (1 - step)))
        self._times.observe(work, seconds, has_prompts=prompts.rows > 0)


class Allowance:
    """What is left for prompts of a step under construction."""

    __slots__ = ("_floor", "_left_s", "_terms")

    def __init__(self, terms: npt.NDArray[np.float64], left_s: float) -> None:
        self._terms = terms
        self._left_s = left_s
        self._floor = _MIN_CHUNK

    @property
    def is_spent(self) -> bool:
        """Whether no token fits any more."""
        return self._floor <= 0 and self.tokens(0, 1) == 0

    def tokens(self, start: int, wanted: int) -> int:
        """How many of ``wanted`` tokens from position ``start`` on fit."""
        _, per_row, per_token, per_pair = self._terms.tolist()
        left_s = self._left_s - per_row
        linear = per_token + per_pair * start
        if left_s <= 0:
            fitting = 0.0
        elif per_pair > 0:
            # per_pair / 2 n^2 + linear n = left_s
            fitting = 2 * left_s / (linear + math.sqrt(linear**2 + 2 * per_pair * left_s))
        else:
            fitting = left_s / linear if linear > 0 else math.inf
        return min(wanted, max(self._floor, 0, int(min(fitting, wanted))))

    def spend(self, start: int, num_tokens: int) -> None:
        """These are planned."""
        _, per_row, per_token, per_pair = self._terms.tolist()
        self._left_s -= per_row + per_token * num_tokens + per_pair * _pairs(start, num_tokens)
        self._floor -= num_tokens


def split_work(rows: Iterable[ScheduledRequest]) -> tuple[Work, Work]:
    """(rows with one known token to compute, and all others)."""
    decodes = prompts = Work()
    for row in rows:
        if row.num_new_tokens - row.num_draft_tokens == 1:
            decodes = decodes.plus(row.start, row.num_new_tokens)
        else:
            prompts = prompts.plus(row.start, row.num_new_tokens)
    return decodes, prompts


def _pairs(start: int, num_tokens: int) -> float:
    return num_tokens * (start + num_tokens / 2)
