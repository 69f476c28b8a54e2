"""Repetition, frequency and presence penalties.

Repetition (Keskar et al., CTRL, 2019) looks at prompt and output: a seen token's logit is divided
by the penalty if positive, multiplied if negative. Frequency and presence (the OpenAI API) look at
the output only, and are subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.sampling.state import RequestSampling


def wants(state: RequestSampling) -> bool:
    """Whether this row is affected."""
    params = state.params
    subtracts = params.frequency_penalty != 0 or params.presence_penalty != 0
    return params.repetition_penalty != 1 or (subtracts and state.position > 0)


def apply(logits: Tensor, states: Sequence[RequestSampling]) -> None:
    """Changes each row by its own counts."""
    for row, state in zip(logits, states, strict=True):
        params = state.params
        if params.repetition_penalty != 1:
            factor = params.repetition_penalty
            penalised = torch.where(row > 0, row / factor, row * factor)
            row.copy_(torch.where(state.seen.to(row.device), penalised, row))
        if params.frequency_penalty or params.presence_penalty:
            counts = state.counts.to(row.device)
            row.sub_(counts, alpha=params.frequency_penalty)
            row.sub_((counts > 0).float(), alpha=params.presence_penalty)
