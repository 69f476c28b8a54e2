"""temperature: divides logits."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo.sampling.state import RequestSampling

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them would overflow."""


def wants(state: RequestSampling) -> bool:
    """Whether this row is affected."""
    return state.params.temperature != 1 and state.params.temperature >= GREEDY_BELOW


def apply(logits: Tensor, states: Sequence[RequestSampling]) -> None:
    """Divides each row by its own temperature."""
    logits.div_(logits.new_tensor([state.params.temperature for state in states])[:, None])
