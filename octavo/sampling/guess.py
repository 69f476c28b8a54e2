"""What a draft model's logits say comes next, for a request whose parameters they do not know.

A guess is right if it is the token that sampling picks from the model's own logits. So it is picked
the same way, with the random number of its position: where both models agree on the distribution,
they agree on the token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.core.types import TokenId
from octavo.sampling.draw import draw
from octavo.sampling.pipeline import GUESS_STEPS, RANDOM_STEPS, run_steps
from octavo.sampling.state import RequestSampling
from octavo.sampling.steps import temperature


def guess(logits: Tensor, states: Sequence[RequestSampling], ahead: int) -> list[TokenId]:
    """A token for each row of ``[rows, vocab]``, ``ahead`` positions after the next one.

    Grammars are not asked, and penalties know of no guess: that costs right guesses only.
    """
    processed = run_steps(GUESS_STEPS, logits, states)
    token_ids: list[TokenId] = torch.argmax(processed, dim=-1).tolist()
    peaks = processed.amax(dim=-1)
    random_rows = [
        row
        for row, state in enumerate(states)
        if state.params.temperature >= temperature.GREEDY_BELOW and bool(peaks[row].isfinite())
    ]
    if random_rows:
        chosen = [states[row] for row in random_rows]
        part = processed if len(chosen) == len(states) else processed[random_rows]
        drawn = draw(run_steps(RANDOM_STEPS, part, chosen), chosen, ahead=ahead)
        for row, token_id in zip(random_rows, drawn, strict=True):
            token_ids[row] = token_id
    return token_ids
