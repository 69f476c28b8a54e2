"""A plan under construction: rows may still be taken back."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

from octavo.core.plan import BlockCopy, NewRequest, ScheduledRequest, StepPlan
from octavo.core.request import Request
from octavo.core.types import BlockId, RequestId
from octavo.kv.manager import BlockDelta
from octavo.scheduler.budget import StepBudget
from octavo.speculate.speculator import Draft

NO_DRAFT = Draft()


class DraftPlan:
    """Rows of the next step in the order in which they were planned."""

    __slots__ = ("_admitted", "_copies", "_rows", "budget")

    def __init__(self, budget: StepBudget) -> None:
        self.budget = budget
        self._rows: dict[RequestId, ScheduledRequest] = {}
        self._copies: dict[RequestId, tuple[BlockCopy, ...]] = {}
        self._admitted: dict[RequestId, NewRequest] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> Collection[ScheduledRequest]:
        """Those that are planned so far."""
        return self._rows.values()

    def add(
        self,
        request: Request,
        num_tokens: int,
        delta: BlockDelta,
        guesses: Draft = NO_DRAFT,
    ) -> None:
        """Plans the next ``num_tokens`` of a request, for which blocks are reserved; the last of
        them may be guesses."""
        start = request.num_computed_tokens
        ends_known = start + num_tokens - guesses.num_tokens == request.num_known_tokens
        wants_sample = request.generates and ends_known
        name = request.request_id
        self._rows[name] = ScheduledRequest(
            name, start, num_tokens, delta.new_block_ids, *guesses, wants_sample
        )
        if delta.copies:
            self._copies[name] = delta.copies
        self.budget.spend(start, num_tokens)

    def admit(
        self, request: Request, num_tokens: int, delta: BlockDelta, table: tuple[BlockId, ...]
    ) -> None:
        """The same for a request that the executor does not know; ``table`` includes ``delta``."""
        blocks = list(table[: len(table) - len(delta.new_block_ids)])
        # The executor gets the table as it was, and applies the copies itself.
        for copy in delta.copies:
            blocks[copy.table_index] = copy.source
        self._admitted[request.request_id] = NewRequest(
            request_id=request.request_id,
            token_ids=tuple(request.token_ids()),
            num_prompt_tokens=request.num_prompt_tokens,
            params=request.params,
            seed=request.seed,
            eos_token_ids=request.eos_token_ids,
            block_ids=tuple(blocks),
        )
        self.add(request, num_tokens, delta)

    def take_back(self, request_id: RequestId) -> None:
        """Removes the row of a request that has lost its blocks, if it has one."""
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._copies.pop(request_id, None)
            self.budget.num_tokens += row.num_new_tokens

    def finish(self, step_id: int, released: tuple[RequestId, ...]) -> StepPlan:
        """The immutable plan."""
        return StepPlan(
            step_id=step_id,
            rows=tuple(self._rows.values()),
            admitted=tuple(self._admitted.values()),
            released=released,
            # In the order in which they were reserved: one may read what another wrote.
            copies=tuple(chain.from_iterable(self._copies.values())),
        )
