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

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDENDS = np.where(_BITS, 0, -np.inf).astype(np.float32)
"""For each byte of a mask: 0 where a token is allowed, least significant bit first."""


def wants(state: RequestSampling) -> bool:
    """Whether this row is affected."""
    return state.mask is not None


def apply(logits: Tensor, states: Sequence[RequestSampling]) -> None:
    """Looks the masks' bytes up in a table of what to add to eight logits each, on their device."""
    masks = np.stack([state.mask for state in states if state.mask is not None])
    packed = torch.from_numpy(masks).to(logits.device, torch.int32)
    table = torch.from_numpy(_ADDENDS).to(logits.device)
    addends = table.index_select(0, packed.flatten()).view(len(masks), -1)
    logits += addends[:, : logits.shape[-1]]
