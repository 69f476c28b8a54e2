"""Log-probabilities of tokens, from raw logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.core.plan import TokenLogprobs
from octavo.core.types import TokenId
from octavo.sampling.draw import best
from octavo.sampling.sums import log_sum_exp


def token_logprobs(
    logits: Tensor, token_ids: Sequence[TokenId], nums_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Log-probability and rank of a token in each row, and the row's best alternatives.

    Args:
        logits: ``[rows, vocab]`` float32, as the model gave them.
        nums_top: how many alternatives each row wants; of equal ones the lowest ids come first.
    """
    chosen = torch.tensor(token_ids, device=logits.device)[:, None]
    totals = log_sum_exp(logits)
    own = logits.gather(-1, chosen)
    ranks = (logits > own).sum(-1) + 1
    most = min(max(nums_top, default=0), logits.shape[-1])
    tops = _best(logits, totals, most) if most else [()] * len(token_ids)
    return [
        TokenLogprobs(token, logprob, rank, top[:num_top])
        for token, logprob, rank, top, num_top in zip(
            token_ids, (own - totals)[:, 0].tolist(), ranks.tolist(), tops, nums_top, strict=True
        )
    ]


def prompt_logprobs(
    logits: Tensor, next_token_ids: Sequence[TokenId], num_top: int
) -> tuple[TokenLogprobs, ...]:
    """The same for prompt positions and the tokens that follow them, ``[n, vocab]`` and ``n``."""
    return tuple(token_logprobs(logits, next_token_ids, [num_top] * len(next_token_ids)))


def _best(logits: Tensor, totals: Tensor, count: int) -> list[tuple[tuple[TokenId, float], ...]]:
    values, ids = best(logits, count)
    values = values - totals
    return [
        tuple(zip(row_ids, row_values, strict=True))
        for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True)
    ]
