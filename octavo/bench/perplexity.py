"""Perplexity of a text: what rounding weights or cached K and V costs, in one number.

The text is cut into windows of equal length, which share nothing; every token of a window but the
first is predicted from those before it. Perplexity is e to the mean of their negative
log-probabilities (Jelinek et al. 1977); its standard error follows from their spread, as if they
were independent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from octavo.core.errors import InvalidParameter
from octavo.core.params import SamplingParams
from octavo.core.types import TokenId
from octavo.llm import LLM

_WINDOW = 512
_WINDOWS_AT_ONCE = 8


class Perplexity(NamedTuple):
    """The result for one text."""

    value: float
    standard_error: float
    num_tokens: int
    """Tokens that were predicted."""
    num_windows: int


def measure(
    llm: LLM,
    text: str,
    *,
    window: int | None = None,
    max_tokens: int | None = None,
    on_progress: Callable[[float], None] = lambda _share: None,
) -> Perplexity:
    """Perplexity of ``text``, or of its first ``max_tokens`` tokens.

    Args:
        window: tokens of each part; 512 by default, or what the model's context allows.

    Raises:
        InvalidParameter: the text is shorter than two tokens, or the window longer than the model's
            context allows.
    """
    longest = llm.info.max_model_len
    if window is None:
        window = min(_WINDOW, longest)
    if not 2 <= window <= longest:
        raise InvalidParameter(f"window is {window}: use 2 to {longest}", param="window")
    token_ids = llm.tokenizer.encode(text)[:max_tokens]
    windows = [token_ids[at : at + window] for at in range(0, len(token_ids), window)]
    windows = [part for part in windows if len(part) > 1]
    if not windows:
        raise InvalidParameter(f"the text has {len(token_ids)} tokens: 2 or more are needed")
    losses: list[float] = []
    for at in range(0, len(windows), _WINDOWS_AT_ONCE):
        losses += _losses(llm, windows[at : at + _WINDOWS_AT_ONCE])
        on_progress(min(1.0, (at + _WINDOWS_AT_ONCE) / len(windows)))
    mean = statistics.fmean(losses)
    spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
    value = math.exp(mean)
    return Perplexity(value, value * spread / math.sqrt(len(losses)), len(losses), len(windows))


def _losses(llm: LLM, windows: Sequence[list[TokenId]]) -> list[float]:
    params = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=0)
    outputs = llm.generate(windows, params, progress=False)
    return [
        -entry.logprob
        for output in outputs
        for entry in output.prompt_logprobs or ()
        if entry is not None
    ]
