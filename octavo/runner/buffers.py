"""What the runner remembers of requests between steps: known tokens and block tables.

Each request has a seat, a row of two tables that stay in place for the life of the runner, so that
a step reads the tokens and blocks of all its rows with one indexed read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.core.errors import ExecutorError
from octavo.core.params import SamplingParams
from octavo.core.plan import BlockCopy, NewRequest
from octavo.core.types import BlockId, RequestId, TokenId
from octavo.grammar.matcher import Matcher
from octavo.runner.pooling import PromptPool
from octavo.sampling.state import RequestSampling


@dataclass(slots=True, kw_only=True)
class Seat:
    """One request and its row in the tables."""

    index: int
    num_prompt_tokens: int
    num_known_tokens: int
    num_blocks: int
    params: SamplingParams
    sampling: RequestSampling
    pool: PromptPool | None = None
    """What its embedding is made of, if one is wanted and not made yet."""


class RequestTables:
    """Seats for ``max_num_seqs`` requests of ``max_model_len`` tokens at most.

    The tables are zeroed by the operating system on first touch: memory is used as requests grow.
    """

    def __init__(
        self, *, max_num_seqs: int, max_model_len: int, block_size: int, vocab_size: int
    ) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int32)
        self.block_ids = np.zeros((max_num_seqs, max_blocks), np.int32)
        self._vocab_size = vocab_size
        self._seats: dict[RequestId, Seat] = {}
        self._free = list(range(max_num_seqs))[::-1]

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._seats

    def __getitem__(self, request_id: RequestId) -> Seat:
        seat = self._seats.get(request_id)
        if seat is None:
            raise ExecutorError(f"the plan has a row for request {request_id!r}, never admitted")
        return seat

    def admit(self, request: NewRequest, matcher: Matcher | None = None) -> Seat:
        """Gives a request a seat, and the matcher of its structured output.

        Raises:
            ExecutorError: it has one already, all are taken, or it has too many tokens.
        """
        num_tokens = len(request.token_ids)
        max_seats, max_tokens = self.token_ids.shape
        if request.request_id in self._seats:
            raise ExecutorError(f"request {request.request_id!r} was admitted twice")
        if not self._free:
            raise ExecutorError(
                f"request {request.request_id!r} finds all {max_seats} seats taken (max_num_seqs)"
            )
        if num_tokens > max_tokens:
            raise ExecutorError(
                f"request {request.request_id!r} has {num_tokens} tokens, more than max_model_len "
                f"({max_tokens})"
            )
        index = self._free[-1]
        self.token_ids[index, :num_tokens] = request.token_ids
        prompt = request.num_prompt_tokens
        seat = self._seats[request.request_id] = Seat(
            index=index,
            num_prompt_tokens=prompt,
            num_known_tokens=num_tokens,
            num_blocks=0,
            params=request.params,
            sampling=RequestSampling(
                request.params,
                seed=request.seed,
                eos_token_ids=request.eos_token_ids,
                prompt_token_ids=request.token_ids[:prompt],
                output_token_ids=request.token_ids[prompt:],
                vocab_size=self._vocab_size,
                matcher=matcher,
            ),
        )
        self._free.pop()  # not before: had anything failed, the seat would be lost
        # What has an output has had its embedding, before a preemption.
        if request.params.pooling is not None and num_tokens == prompt:
            seat.pool = PromptPool(request.params.pooling)
        self.extend_blocks(request.request_id, request.block_ids)
        return seat

    def release(self, request_id: RequestId) -> None:
        """Frees a request's seat; one that has none is ignored (it never ran here)."""
        seat = self._seats.pop(request_id, None)
        if seat is not None:
            self._free.append(seat.index)

    def extend_blocks(self, request_id: RequestId, block_ids: tuple[BlockId, ...]) -> None:
        """Appends to a request's block table."""
        if not block_ids:
            return
        seat = self[request_id]
        end = seat.num_blocks + len(block_ids)
        if end > self.block_ids.shape[1]:
            raise ExecutorError(
                f"request {request_id!r} was given {end} blocks; max_model_len needs at most "
                f"{self.block_ids.shape[1]}"
            )
        self.block_ids[seat.index, seat.num_blocks : end] = block_ids
        seat.num_blocks = end

    def replace_block(self, copy: BlockCopy) -> None:
        """Puts the target of a copy in the place of its source in the request's block table.

        Raises:
            ExecutorError: the source is not there.
        """
        seat = self[copy.request_id]
        table = self.block_ids[seat.index, : seat.num_blocks].tolist()
        if copy.table_index < 0 or table[copy.table_index : copy.table_index + 1] != [copy.source]:
            raise ExecutorError(
                f"the plan copies block {copy.source} to {copy.target} at index "
                f"{copy.table_index} of request {copy.request_id!r}, whose blocks are {table}"
            )
        self.block_ids[seat.index, copy.table_index] = copy.target

    def write_guesses(self, seat: Seat, guesses: Sequence[TokenId], skip: int = 0) -> None:
        """Puts guesses after the known tokens and ``skip`` earlier guesses, for one step."""
        begin = seat.num_known_tokens + skip
        self.token_ids[seat.index, begin : begin + len(guesses)] = guesses

    def trim_blocks(self, seat: Seat, num_tokens: int, block_size: int) -> None:
        """Drops the blocks at the end that so many tokens do not need."""
        seat.num_blocks = min(seat.num_blocks, -(-num_tokens // block_size))

    def append_token(self, seat: Seat, token_id: TokenId) -> None:
        """Adds a sampled token to what is known; beyond ``max_model_len`` it cannot be computed,
        so it need not be kept."""
        if seat.num_known_tokens < self.token_ids.shape[1]:
            self.token_ids[seat.index, seat.num_known_tokens] = token_id
        seat.num_known_tokens += 1
        seat.sampling.append(token_id)
