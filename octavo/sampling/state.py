"""What sampling remembers of a request from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.core.params import SamplingParams
from octavo.core.types import TokenId
from octavo.grammar.matcher import Matcher


class RequestSampling:
    """Parameters, seed and history of one request."""

    __slots__ = (
        "_counts",
        "_prompt_token_ids",
        "_seen",
        "eos_token_ids",
        "fault",
        "mask",
        "matcher",
        "output_token_ids",
        "params",
        "seed",
        "vocab_size",
    )

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        eos_token_ids: frozenset[TokenId],
        prompt_token_ids: Sequence[TokenId],
        output_token_ids: Sequence[TokenId],
        vocab_size: int,
        matcher: Matcher | None = None,
    ) -> None:
        self.params = params
        self.seed = seed
        self.eos_token_ids = eos_token_ids
        self.output_token_ids = list(output_token_ids)
        self.vocab_size = vocab_size
        self.matcher = matcher
        """Where the output stands in its grammar, if it has one."""
        self.mask: npt.NDArray[np.uint8] | None = None
        """The tokens that the grammar allows next, one bit each: see `octavo.sampling.masks`."""
        self.fault: str | None = None
        """Why no token can be sampled for this request, whatever the logits."""
        self._prompt_token_ids = prompt_token_ids
        self._counts: Tensor | None = None
        self._seen: Tensor | None = None

    @property
    def position(self) -> int:
        """Index of the output token that is sampled next."""
        return len(self.output_token_ids)

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow the output: its grammar says so."""
        return self.matcher is not None and self.matcher.is_complete

    def append(self, token_id: TokenId) -> None:
        """A token has been generated."""
        self.output_token_ids.append(token_id)
        if self.matcher is not None:
            self.matcher.consume((token_id,))
        if self._counts is not None:
            self._counts[token_id] += 1
        if self._seen is not None:
            self._seen[token_id] = True

    @property
    def counts(self) -> Tensor:
        """How often each token was generated, ``[vocab]`` float32; made when first needed."""
        if self._counts is None:
            ids = torch.tensor(self.output_token_ids, dtype=torch.int64)
            self._counts = torch.bincount(ids, minlength=self.vocab_size).float()
        return self._counts

    @property
    def seen(self) -> Tensor:
        """Which tokens occur in prompt or output, ``[vocab]`` bool; made when first needed."""
        if self._seen is None:
            self._seen = torch.zeros(self.vocab_size, dtype=torch.bool)
            ids = [*self._prompt_token_ids, *self.output_token_ids]
            self._seen[torch.tensor(ids, dtype=torch.int64)] = True
        return self._seen
