"""The order of steps from logits to a token; steps that no row wants cost nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo.core.plan import TokenLogprobs
from octavo.core.types import TokenId
from octavo.sampling.draw import draw
from octavo.sampling.logprobs import token_logprobs
from octavo.sampling.state import RequestSampling
from octavo.sampling.steps import (
    allowed,
    bad_words,
    grammar,
    logit_bias,
    min_tokens,
    penalties,
    temperature,
)

logger = logging.getLogger(__name__)


class Sampled(NamedTuple):
    """What came of one row."""

    token_id: TokenId
    """Meaningless if there is an error, or if the output is complete."""
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    is_complete: bool = False
    """Whether the output ends without a token: it is whole, and nothing may follow."""


class Step(NamedTuple):
    """One change of logits, for the rows that want it."""

    wants: Callable[[RequestSampling], bool]
    apply: Callable[[Tensor, Sequence[RequestSampling]], None]


STEPS = (
    Step(grammar.wants, grammar.apply),
    Step(allowed.wants, allowed.apply),
    Step(bad_words.wants, bad_words.apply),
    Step(min_tokens.wants, min_tokens.apply),
    Step(logit_bias.wants, logit_bias.apply),
    Step(penalties.wants, penalties.apply),
)
"""Before choosing between greedy and random."""

GUESS_STEPS = tuple(step for step in STEPS if step.apply is not grammar.apply)
"""For a draft model's logits."""

RANDOM_STEPS = (Step(temperature.wants, temperature.apply),)
"""For rows that draw."""


def sample(logits: Tensor, states: Sequence[RequestSampling]) -> list[Sampled]:
    """Picks a token for each row of ``logits [rows, vocab]``, float32; does not change them.

    A row whose logits are NaN, or rule every token out, or for which a step fails, gets an error;
    the others are not touched. If a grammar lets its output end there, it is complete instead.
    Nothing here changes a state, so that rows may be tried again.
    """
    try:
        return _sample(logits, states)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if len(states) > 1:  # a row depends on itself alone: one by one, the others succeed
            parts = (slice(row, row + 1) for row in range(len(states)))
            return [sample(logits[part], states[part])[0] for part in parts]
        logger.error("a token could not be sampled", exc_info=error)
        return [Sampled(-1, error=f"sampling failed: {type(error).__name__}: {error}")]


def _sample(logits: Tensor, states: Sequence[RequestSampling]) -> list[Sampled]:
    processed = run_steps(STEPS, logits, states)
    token_ids = torch.argmax(processed, dim=-1).tolist()
    peaks = processed.amax(dim=-1).tolist()
    random_rows = [
        row
        for row, state in enumerate(states)
        if state.params.temperature >= temperature.GREEDY_BELOW and np.isfinite(peaks[row])
    ]
    if random_rows:
        chosen = [states[row] for row in random_rows]
        part = processed if len(chosen) == len(states) else processed[random_rows]
        drawn = draw(run_steps(RANDOM_STEPS, part, chosen), chosen)
        for row, token_id in zip(random_rows, drawn, strict=True):
            token_ids[row] = token_id
    logprobs = _logprobs(logits, token_ids, states)
    return [
        _sampled(token_ids[row], logprobs.get(row), peaks[row], state)
        for row, state in enumerate(states)
    ]


def run_steps(steps: Sequence[Step], logits: Tensor, states: Sequence[RequestSampling]) -> Tensor:
    """The logits after these steps: a copy, if any row wants one."""
    out = logits
    for step in steps:
        rows = [row for row, state in enumerate(states) if step.wants(state)]
        if not rows:
            continue
        if out is logits:
            out = logits.clone()
        if len(rows) == len(states):
            step.apply(out, states)
        else:
            part = out[rows]
            step.apply(part, [states[row] for row in rows])
            out[rows] = part
    return out


def _logprobs(
    logits: Tensor, token_ids: list[TokenId], states: Sequence[RequestSampling]
) -> dict[int, TokenLogprobs]:
    rows = [row for row, state in enumerate(states) if state.params.logprobs is not None]
    if not rows:
        return {}
    wanted = [states[row].params.logprobs or 0 for row in rows]
    part = logits if len(rows) == len(states) else logits[rows]
    found = token_logprobs(part, [token_ids[row] for row in rows], wanted)
    return dict(zip(rows, found, strict=True))


def _sampled(
    token_id: TokenId, logprobs: TokenLogprobs | None, peak: float, state: RequestSampling
) -> Sampled:
    """An output that may end where nothing can be generated is complete; else that is an error."""
    if peak == -np.inf and state.matcher is not None and state.matcher.is_accepting:
        return Sampled(token_id, is_complete=True)
    return Sampled(token_id, logprobs, _fault(peak, state))


def _fault(peak: float, state: RequestSampling) -> str | None:
    if state.fault is not None:
        return state.fault
    if state.matcher is not None and state.matcher.error is not None:
        return f"structured output cannot go on: {state.matcher.error}"
    if np.isfinite(peak):
        return None
    if peak == -np.inf:
        limits = "allowed_token_ids, bad_words, min_tokens and logit_bias"
        if state.matcher is not None:
            return (
                f"no token can be generated: {limits} rule out every one that the structured "
                "output allows next"
            )
        return f"no token can be generated: {limits} rule out every one"
    return f"the model's logits are not finite (largest: {peak})"
