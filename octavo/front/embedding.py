"""Embeddings as clients get them: vectors of length 1, compared by the cosine of their angle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.core.errors import ExecutorError, InvalidParameter
from octavo.core.params import SamplingParams
from octavo.core.types import Pooling, TokenId
from octavo.front.outputs import RequestOutput

Vector: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding:
    """A prompt as a point on the unit sphere."""

    vector: Vector
    """``[hidden_size]``, of length 1 (or 0, if the model makes nothing of the prompt)."""
    prompt_token_ids: tuple[TokenId, ...]
    num_cached_tokens: int = 0


def embedding_params(pooling: Pooling) -> SamplingParams:
    """What to ask of the engine for an embedding and nothing else."""
    return SamplingParams(max_tokens=0, pooling=pooling)


def embedding_of(output: RequestOutput) -> Embedding:
    """The embedding that a request with `embedding_params` has brought.

    Raises:
        ExecutorError: the request has failed.
    """
    if output.embedding is None:
        reason = output.outputs[0].error or "it was aborted"
        raise ExecutorError(f"the prompt has no embedding: {reason}")
    return Embedding(
        vector=unit_vector(output.embedding),
        prompt_token_ids=output.prompt_token_ids,
        num_cached_tokens=output.num_cached_tokens,
    )


def unit_vector(embedding: bytes) -> Vector:
    """Pooled hidden states (`RequestOutput.embedding`) at length 1; zeros stay as they are."""
    vector = np.frombuffer(embedding, np.float32).astype(np.float64)
    length = np.sqrt(np.sum(np.square(vector)))
    return (vector / length if length > 0 else vector).astype(np.float32)


def cosine(a: Vector, b: Vector) -> float:
    """Cosine of the angle between two vectors of length 1, in [-1, 1]."""
    return float(np.clip(np.sum(a.astype(np.float64) * b), -1.0, 1.0))


def pairs(num_first: int, num_second: int) -> list[tuple[int, int]]:
    """Which of the first texts to compare with which of the second: one with each, or one by one.

    Raises:
        InvalidParameter: there are none, or the numbers do not fit.
    """
    for name, number in (("text_1", num_first), ("text_2", num_second)):
        if not number:
            raise InvalidParameter(f"{name} is empty: give at least one text", param=name)
    if num_first not in (1, num_second):
        raise InvalidParameter(
            f"text_1 has {num_first} texts and text_2 has {num_second}: give one text_1 for all of "
            "text_2, or as many of one as of the other",
            param="text_1",
        )
    return [(0 if num_first == 1 else index, index) for index in range(num_second)]
