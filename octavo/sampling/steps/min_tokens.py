"""min_tokens: tokens that would end the output are ruled out until it is long enough."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.sampling.state import RequestSampling


def wants(state: RequestSampling) -> bool:
    """Whether this row is affected."""
    return state.position < state.params.min_tokens and bool(_enders(state))


def apply(logits: Tensor, states: Sequence[RequestSampling]) -> None:
    """Rules tokens out, row by row: the lists are sparse."""
    for row, state in zip(logits, states, strict=True):
        row[_enders(state)] = -torch.inf


def _enders(state: RequestSampling) -> list[int]:
    eos = () if state.params.ignore_eos else state.eos_token_ids
    return sorted({*eos, *state.params.stop_token_ids})
