"""top_k, top_p and min_p: which tokens may be drawn, as one cut through the sorted distribution.

All three keep a prefix of the tokens sorted by probability, so their intersection is the shortest
of the three. Sorting a vocabulary is slow; the best `CANDIDATES` are looked at first, and only rows
whose cut may lie beyond them are sorted whole.

top_p is applied to what top_k has left, and min_p to the full distribution, which is the same as to
what is left, since all of them keep the most likely token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.sampling.state import RequestSampling

CANDIDATES = 1024


def wants(state: RequestSampling) -> bool:
    """Whether this row is affected."""
    params = state.params
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def apply(logits: Tensor, states: Sequence[RequestSampling]) -> None:
    """Sets the logits of tokens beyond the cut to minus infinity."""
    vocab = logits.shape[-1]
    limits = _Limits(logits, states)
    keep = _count_kept(logits, limits, min(CANDIDATES, vocab))
    # A row whose cut is at the end of its candidates may have to look further.
    unsure = (keep >= CANDIDATES) & (limits.top_k > CANDIDATES)
    rows = torch.nonzero(unsure).flatten()
    if vocab > CANDIDATES and len(rows):
        keep[rows] = _count_kept(logits[rows], limits.rows(rows), vocab)
    _cut(logits, keep)


class _Limits:
    """The three limits of each row as columns, and the row's normaliser."""

    def __init__(self, logits: Tensor, states: Sequence[RequestSampling]) -> None:
        vocab = logits.shape[-1]
        params = [state.params for state in states]
        self.top_k = torch.tensor([p.top_k or vocab for p in params], device=logits.device)
        self.top_k.clamp_(max=vocab)
        self.top_p = logits.new_tensor([p.top_p for p in params], dtype=torch.float64)
        self.min_p = logits.new_tensor([p.min_p for p in params], dtype=torch.float64)
        self.log_total = torch.logsumexp(logits.double(), dim=-1)

    def rows(self, index: Tensor) -> _Limits:
        """The limits of some rows."""
        part = object.__new__(_Limits)
        for name in ("top_k", "top_p", "min_p", "log_total"):
            setattr(part, name, getattr(self, name)[index])
        return part


def _count_kept(logits: Tensor, limits: _Limits, depth: int) -> Tensor:
    """How many of the ``depth`` most likely tokens of each row are kept, at least 1."""
    best = torch.topk(logits, depth, dim=-1).values.double()
    probabilities = torch.exp(best - limits.log_total[:, None])
    rank = torch.arange(depth, device=logits.device)
    within_k = rank < limits.top_k[:, None]
    probabilities = torch.where(within_k, probabilities, 0.0)
    # The mass that top_p is a share of: what top_k leaves.
    mass = torch.where(limits.top_k < depth, probabilities.sum(-1), 1.0)
    before = torch.cumsum(probabilities, dim=-1) - probabilities
    within_p = before < (limits.top_p * mass)[:, None]
    within_p |= limits.top_p[:, None] >= 1
    floor = limits.min_p[:, None] * probabilities[:, :1]
    kept = within_k & within_p & (probabilities >= floor)
    return kept.sum(-1).clamp(min=1)


def _cut(logits: Tensor, keep: Tensor) -> None:
    """Keeps the ``keep`` most likely tokens of each row; of equal ones the lowest ids."""
    depth = int(keep.max())
    values = torch.topk(logits, depth, dim=-1).values
    threshold = values.gather(-1, (keep - 1)[:, None])
    above = logits > threshold
    equal = logits == threshold
    room = keep[:, None] - above.sum(-1, keepdim=True)
    equal &= torch.cumsum(equal, dim=-1) <= room
    logits.masked_fill_(~(above | equal), -torch.inf)
