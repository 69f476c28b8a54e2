"""A plan's rows as arrays: pure functions, nothing loops over tokens.

::

    rows            A: start 0, 3 new      B: start 17, 1 new     C: start 4, 2 new
    token_ids       a0 a1 a2               b17                    c4 c5
    positions       0  1  2                17                     4  5
    query_starts    0                      3                      4              6
    context_lens    3                      18                     6
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.attention.base import BatchLayout, IntArray
from octavo.core.errors import ExecutorError
from octavo.core.plan import ScheduledRequest
from octavo.runner.buffers import RequestTables, Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBatch:
    """What a step feeds the model, and where its outputs are wanted."""

    token_ids: IntArray  # [num_tokens]
    positions: IntArray  # [num_tokens]
    layout: BatchLayout
    sampled_rows: tuple[int, ...]
    """Rows of the plan that want a sample: from the logits of their last known token, and those of
    each guess after it."""

    def sampled_tokens(self, row: int, num_guesses: int) -> range:
        """Packed indices of the tokens whose logits a row is sampled from."""
        end = int(self.layout.query_starts[row + 1])
        return range(end - 1 - num_guesses, end)


def make_batch(
    rows: Sequence[ScheduledRequest], tables: RequestTables, block_size: int
) -> InputBatch:
    """Looks up tokens, positions and slots of all rows.

    Raises:
        ExecutorError: a row asks for tokens that are not known, or that have no block.
    """
    seats = [tables[row.request_id] for row in rows]
    for row, seat in zip(rows, seats, strict=True):
        _check(row, seat, block_size)
    indices = np.array([seat.index for seat in seats])
    starts = np.array([row.start for row in rows])
    lens = np.array([row.num_new_tokens for row in rows])
    query_starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lens, out=query_starts[1:])
    positions = np.arange(query_starts[-1]) - np.repeat(query_starts[:-1] - starts, lens)
    seat_of_token = np.repeat(indices, lens)
    blocks: npt.NDArray[np.int64] = tables.block_ids[seat_of_token, positions // block_size].astype(
        np.int64
    )
    context_lens = starts + lens
    width = -(-int(context_lens.max()) // block_size)
    return InputBatch(
        token_ids=tables.token_ids[seat_of_token, positions].astype(np.int64),
        positions=positions,
        layout=BatchLayout(
            slots=blocks * block_size + positions % block_size,
            query_starts=query_starts,
            context_lens=context_lens,
            block_tables=tables.block_ids[indices, :width].astype(np.int64),
        ),
        sampled_rows=tuple(index for index, row in enumerate(rows) if row.wants_sample),
    )


def prompt_targets(row: ScheduledRequest, seat: Seat) -> range:
    """Positions of prompt tokens that this row's tokens predict: those after each computed one."""
    first = row.start + 1
    return range(first, max(first, min(row.start + row.num_new_tokens + 1, seat.num_prompt_tokens)))


def _check(row: ScheduledRequest, seat: Seat, block_size: int) -> None:
    end = row.start + row.num_new_tokens
    num_tokens = seat.num_known_tokens + row.num_draft_tokens
    if row.num_new_tokens < 1 or row.start < 0 or end > num_tokens:
        raise ExecutorError(
            f"the plan wants tokens {row.start} to {end} of request {row.request_id!r}, which has "
            f"{num_tokens} known and guessed tokens"
        )
    if end > seat.num_blocks * block_size:
        raise ExecutorError(
            f"the plan computes tokens up to {end} of request {row.request_id!r}, whose "
            f"{seat.num_blocks} blocks hold {seat.num_blocks * block_size}"
        )
