"""The embedding of a prompt: hidden states of its tokens become one vector, a chunk at a time.

A sum runs in float64 on the host, token after token, so that its bits depend on the hidden states
alone, however the prompt was cut into steps.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.core.types import Pooling

FloatArray: TypeAlias = npt.NDArray[np.float32]


class PromptPool:
    """What has been computed of one prompt so far."""

    __slots__ = ("_kind", "_num_tokens", "_total")

    def __init__(self, kind: Pooling) -> None:
        self._kind = kind
        self._num_tokens = 0
        self._total: npt.NDArray[np.float64] | None = None

    def wanted(self, num_tokens: int, *, is_end: bool) -> slice:
        """Which of the next ``num_tokens`` hidden states `add` needs; ``is_end`` if the prompt ends
        with them."""
        if self._kind == "mean":
            return slice(0, num_tokens)
        return slice(num_tokens - 1, num_tokens) if is_end else slice(0, 0)

    def add(self, hidden: FloatArray) -> None:
        """Takes in hidden states ``[num_tokens, hidden_size]``, in the order of the prompt."""
        if self._total is None:
            self._total = np.zeros(hidden.shape[1], np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # `result` looks at what came of it
            for state in hidden:
                self._total += state
        self._num_tokens += len(hidden)

    def result(self) -> bytes:
        """The vector of the whole prompt: see `octavo.core.plan.RowResult.embedding`.

        Raises:
            FloatingPointError: it is not finite.
        """
        assert self._total is not None, "nothing was pooled"
        with np.errstate(over="ignore"):
            vector = (self._total / self._num_tokens).astype(np.float32)
        if not np.isfinite(vector).all():
            raise FloatingPointError("the model's hidden states are not finite")
        return vector.tobytes()
