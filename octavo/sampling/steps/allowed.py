"""allowed_token_ids: everything else is ruled out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.sampling.state import RequestSampling


def wants(state: RequestSampling) -> bool:
    """Whether this row is affected."""
    return state.params.allowed_token_ids is not None


def apply(logits: Tensor, states: Sequence[RequestSampling]) -> None:
    """Rules tokens out, row by row: the lists are sparse."""
    for row, state in zip(logits, states, strict=True):
        allowed = torch.tensor(state.params.allowed_token_ids, dtype=torch.int64)
        allowed = allowed.to(row.device)
        kept = row[allowed]
        row.fill_(-torch.inf)
        row[allowed] = kept
