"""Structured output: tokens that the grammar does not allow next are ruled out.

What is ruled out stays so whatever the other steps add or divide by, so that their order does not
matter. End-of-sequence tokens are allowed exactly where the output may end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.sampling.state import RequestSampling


def wants(state: RequestSampling) -> bool:
    """Whether this row is affected."""
    return state.mask is not None


def apply(logits: Tensor, states: Sequence[RequestSampling]) -> None:
    """Spreads the masks' bits over the vocabulary, on the logits' device."""
    masks = np.stack([state.mask for state in states if state.mask is not None])
    packed = torch.from_numpy(masks).to(logits.device)
    bits = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=logits.device)
    is_allowed = packed.unsqueeze(-1).bitwise_and(bits).flatten(1)[:, : logits.shape[-1]]
    logits.masked_fill_(is_allowed == 0, -torch.inf)
