"""bad_words: the last token of a forbidden sequence is ruled out where the rest stands already."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.core.types import TokenId
from octavo.sampling.state import RequestSampling


def wants(state: RequestSampling) -> bool:
    """Whether this row is affected."""
    return bool(_forbidden(state))


def apply(logits: Tensor, states: Sequence[RequestSampling]) -> None:
    """Rules tokens out, row by row: the lists are sparse."""
    for row, state in zip(logits, states, strict=True):
        row[_forbidden(state)] = -torch.inf


def _forbidden(state: RequestSampling) -> list[TokenId]:
    output = state.output_token_ids
    return [
        last
        for *before, last in state.params.bad_words_token_ids
        if not before or output[-len(before) :] == before
    ]
