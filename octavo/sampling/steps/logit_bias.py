"""logit_bias: added to single tokens."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo.sampling.state import RequestSampling


def wants(state: RequestSampling) -> bool:
    """Whether this row is affected."""
    return bool(state.params.logit_bias)


def apply(logits: Tensor, states: Sequence[RequestSampling]) -> None:
    """Adds the biases, row by row: they are sparse."""
    for row, state in zip(logits, states, strict=True):
        bias = state.params.logit_bias
        row[list(bias)] += row.new_tensor(list(bias.values()))
