"""Draws a token from each row's distribution, cut by top_k, top_p and min_p.

All three cuts keep a prefix of the tokens sorted by probability (of equal ones the lowest ids
first), so together they keep the shortest of the three. Sorting a vocabulary is slow: a few of the
best are looked at, and more of them only in rows whose cut may lie beyond (`DEPTHS`). top_p is a
share of what top_k leaves; min_p is a share of the most likely token, which every cut keeps.

A token is drawn by inverse transform: the first at which the running sum of weights passes a
uniform share of their total. Each row's arithmetic is its own, whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.core.types import TokenId
from octavo.sampling.state import RequestSampling
from octavo.sampling.sums import row_sums
from octavo.sampling.uniform import uniforms

DEPTHS = (256, 4096)
"""How many candidates to look at, and how many next; then the whole vocabulary."""
_ALL_BITS = 2**64 - 1


def draw(logits: Tensor, states: Sequence[RequestSampling], ahead: int = 0) -> list[TokenId]:
    """A token for each row of ``[rows, vocab]``, temperature applied, with a finite maximum; it
    stands ``ahead`` positions after the next one of its request."""
    shares = _shares(states, ahead).to(logits.device)
    found = [0] * len(states)
    cut = [row for row, state in enumerate(states) if _is_cut(state)]
    whole = [row for row, state in enumerate(states) if not _is_cut(state)]
    if whole:
        tokens = _draw_whole(logits if not cut else logits[whole], shares[whole])
        for row, token in zip(whole, tokens, strict=True):
            found[row] = token
    if cut:
        tokens = _draw_cut(
            logits if not whole else logits[cut], shares[cut], [states[row] for row in cut]
        )
        for row, token in zip(cut, tokens, strict=True):
            found[row] = token
    return found


def _is_cut(state: RequestSampling) -> bool:
    params = state.params
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _shares(states: Sequence[RequestSampling], ahead: int) -> Tensor:
    """One uniform number a row, float64."""
    seeds = np.array([state.seed & _ALL_BITS for state in states], dtype=np.uint64)
    positions = np.array([state.position + ahead for state in states], dtype=np.uint64)
    return torch.from_numpy(uniforms(seeds, positions))


def _draw_whole(logits: Tensor, shares: Tensor) -> list[TokenId]:
    """From the whole distribution, in the order of token ids."""
    weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    return _pick(weights, shares)


def _draw_cut(
    logits: Tensor,
    shares: Tensor,
    states: Sequence[RequestSampling],
    depths: Sequence[int] = DEPTHS,
) -> list[TokenId]:
    """From the best candidates, in the order of their probability."""
    depth, *deeper = (*depths, logits.shape[-1])
    values, ids = best(logits, min(depth, logits.shape[-1]))
    weights, sure = _cut_weights(logits, values, states)
    ranks = torch.tensor(_pick(weights, shares), device=ids.device)
    tokens: list[TokenId] = ids.gather(-1, ranks[:, None])[:, 0].tolist()
    unsure = torch.nonzero(~sure).flatten().tolist()
    if unsure:
        rest = [states[row] for row in unsure]
        found = _draw_cut(logits[unsure], shares[unsure], rest, deeper[:-1])
        for row, token in zip(unsure, found, strict=True):
            tokens[row] = token
    return tokens


def _cut_weights(
    logits: Tensor, values: Tensor, states: Sequence[RequestSampling]
) -> tuple[Tensor, Tensor]:
    """(weights of the candidates, 0 beyond the cut; whether the cut lies among them), by row."""
    vocab, depth = logits.shape[-1], values.shape[-1]
    params = [state.params for state in states]
    top_k = torch.tensor([min(p.top_k or vocab, vocab) for p in params], device=values.device)
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=values.device)
    min_p = torch.tensor([p.min_p for p in params], dtype=torch.float64, device=values.device)
    weights = torch.exp((values - values[:, :1]).double())
    weights *= torch.arange(depth, device=values.device) < top_k[:, None]
    total = row_sums(weights)
    open_ended = (top_k > depth) & (top_p < 1)
    if bool(open_ended.any()):
        everything = row_sums(torch.exp(logits - values[:, :1]), torch.float64)
        total = torch.where(top_k > depth, everything, total)
    before = torch.cumsum(weights, dim=-1) - weights
    kept = (before < (top_p * total)[:, None]) | (top_p >= 1)[:, None]
    kept &= weights >= min_p[:, None]
    kept[:, 0] = True
    # top_p is a share of the top_k tokens' mass, which fewer candidates do not tell.
    mass_is_known = (top_k <= depth) | (top_k == vocab) | (top_p >= 1)
    sure = mass_is_known & (~kept[:, -1] | (top_k <= depth))
    return weights * kept, sure


def _pick(weights: Tensor, shares: Tensor) -> list[int]:
    """Index at which the running sum passes the share, never one of weight 0."""
    sums = torch.cumsum(weights, dim=-1, dtype=torch.float64)
    totals = sums[:, -1:]
    # A share just below 1 times the total can round up to the total: stay below, where a weight is.
    targets = torch.minimum(shares[:, None] * totals, torch.nextafter(totals, 0 * totals))
    picked: list[int] = torch.searchsorted(sums, targets, right=True)[:, 0].tolist()
    return picked


def best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row and their ids, best first, of equal ones the lowest ids
    first."""
    if count == logits.shape[-1]:
        values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
        return values, ids
    values, ids = torch.topk(logits, count, dim=-1)
    # topk leaves the order of equal values open,
    by_id = torch.argsort(ids, dim=-1)
    values, ids = values.gather(-1, by_id), ids.gather(-1, by_id)
    by_value = torch.argsort(values, dim=-1, descending=True, stable=True)
    values, ids = values.gather(-1, by_value), ids.gather(-1, by_value)
    # and which of those that equal the last one it takes. Nobody takes one that is ruled out.
    last = values[:, -1:]
    is_open = (logits == last).sum(-1) > (values == last).sum(-1)
    is_open &= last[:, 0] > -torch.inf
    for row in torch.nonzero(is_open).flatten().tolist():
        order = torch.sort(logits[row], descending=True, stable=True)
        values[row], ids[row] = order.values[:count], order.indices[:count]
    return values, ids
