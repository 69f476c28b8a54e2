"""What the runner asks of a model."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from octavo.attention.base import ForwardContext
from octavo.core.model_spec import ModelSpec


class CausalModel(Protocol):
    """A decoder-only transformer that keeps its K and V in ``ctx``."""

    @property
    def spec(self) -> ModelSpec:
        """Its shape."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""

    @property
    def dtype(self) -> torch.dtype:
        """Precision of its weights."""

    @property
    def weight_bytes(self) -> int:
        """Memory of weights and tables as they are held now."""

    def __call__(self, token_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """Hidden states ``[num_tokens, hidden_size]`` of packed tokens, int64 ``[num_tokens]``
        each. K and V of every token are in the cache afterwards."""

    def normalised(self, hidden: Tensor) -> Tensor:
        """Hidden states as the output projection sees them, after the last norm; float32, each row
        from that row alone."""

    def logits(self, hidden: Tensor) -> Tensor:
        """``[rows, hidden_size]`` to float32 ``[rows, vocab_size]``."""
