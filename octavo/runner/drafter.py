"""Guesses by a model: a smaller one, or the model itself with rounded weights.

It runs over the same blocks as the model does. A smaller model has a cache of its own, in which a
block id names the same tokens as in the model's cache, so that there is one block table, and a
prefix that is found in one is found in both. The model with rounded weights writes to the model's
own cache: K and V of the tokens that it guesses from are about right, until the verification of
these guesses, in the same step, computes every one of them again and leaves exact ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from octavo.attention.base import AttentionBackend, ForwardContext, LayerCache
from octavo.core.plan import ScheduledRequest, StepPlan
from octavo.core.types import BlockId, RequestId, TokenId
from octavo.models.base import CausalModel
from octavo.runner import kv_tensors
from octavo.runner.buffers import RequestTables
from octavo.runner.input_batch import InputBatch, make_batch
from octavo.runner.memory import logits_rows
from octavo.sampling.guess import guess


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """What makes the guesses."""

    model: CausalModel
    backend: AttentionBackend
    shares_cache: bool
    """Whether it reads and writes the model's own K and V."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Of K and V in a cache of its own."""
        if self.shares_cache:
            return 0
        sizes = (math.prod(shape) for shape in self.backend.block_shapes())
        placement = self.backend.placement
        per_block = sum(sizes) * placement.kv_dtype.itemsize * self.model.spec.num_layers
        return per_block // placement.block_size


class Drafter:
    """Runs a draft model over the rows of the runner's tables."""

    def __init__(
        self,
        draft: DraftModel,
        tables: RequestTables,
        model_caches: Sequence[LayerCache],
        *,
        num_blocks: int,
    ) -> None:
        self._model, self._backend = draft.model, draft.backend
        self._tables = tables
        self._block_size = draft.backend.placement.block_size
        self._shares_cache = draft.shares_cache
        self._caches = (
            model_caches
            if draft.shares_cache
            else kv_tensors.allocate(draft.backend, draft.model.spec.num_layers, num_blocks)
        )
        self._num_computed = np.zeros(len(tables.token_ids), np.int64)
        """By seat: tokens whose K and V are in the draft model's own cache. They may lag behind the
        model's by less than a block, and by more while they are of no use."""
        self._logits_rows = logits_rows(draft.model.spec.vocab_size)

    def copy_blocks(self, pairs: Sequence[tuple[BlockId, BlockId]]) -> None:
        """Copies blocks in the draft model's own cache, if it has one."""
        if not self._shares_cache:
            for cache in self._caches:
                self._backend.copy_blocks(cache, pairs)

    def draft(self, plan: StepPlan) -> StepPlan:
        """The plan with all guesses made."""
        if not self._shares_cache:
            self._keep_up(plan)
        rows = [row for row in plan.rows if row.drafts_by_model]
        if not rows:
            return plan
        drafts = self._guess(rows)
        return replace(
            plan,
            rows=tuple(
                row._replace(draft_token_ids=drafts[row.request_id])
                if row.request_id in drafts
                else row
                for row in plan.rows
            ),
        )

    def _guess(self, rows: Sequence[ScheduledRequest]) -> dict[RequestId, tuple[TokenId, ...]]:
        drafts: dict[RequestId, tuple[TokenId, ...]] = {row.request_id: () for row in rows}
        depth = 0
        while rows:
            for row, token_id in zip(rows, self._next_tokens(rows, depth), strict=True):
                drafts[row.request_id] += (token_id,)
                self._tables.write_guesses(self._tables[row.request_id], (token_id,), skip=depth)
            depth += 1
            rows = [row for row in rows if row.num_draft_tokens > depth]
        return drafts

    def _next_tokens(self, rows: Sequence[ScheduledRequest], depth: int) -> list[TokenId]:
        """One guess for each row, after ``depth`` guesses."""
        parts = [self._part(row, row.start + 1 + depth, depth) for row in rows]
        batch, hidden = self._forward(parts)
        states = [self._tables[row.request_id].sampling for row in rows]
        token_ids: list[TokenId] = []
        for begin in range(0, len(rows), self._logits_rows):
            end = begin + self._logits_rows
            last = torch.from_numpy(batch.layout.query_starts[1:][begin:end] - 1)
            logits = self._model.logits(hidden.index_select(0, last.to(hidden.device)))
            token_ids += guess(logits, states[begin:end], depth)
        return token_ids

    def _keep_up(self, plan: StepPlan) -> None:
        """Computes what the draft model has not, where that is a block of tokens or more."""
        for row in self._admitted_rows(plan):
            self._num_computed[self._tables[row.request_id].index] = row.start
        for row in plan.rows:
            # Of guesses that were wrong, K and V are there, but of the wrong tokens.
            index = self._tables[row.request_id].index
            self._num_computed[index] = min(self._num_computed[index], row.start)
        behind = []
        for row in plan.rows:
            end = row.start + row.num_new_tokens - row.num_draft_tokens
            computed = self._num_computed[self._tables[row.request_id].index]
            if not row.drafts_by_model and end - computed >= self._block_size:
                behind.append(self._part(row, end, 0))
        if behind:
            self._forward(behind)

    def _admitted_rows(self, plan: StepPlan) -> Iterator[ScheduledRequest]:
        admitted = {request.request_id for request in plan.admitted}
        return (row for row in plan.rows if row.request_id in admitted)

    def _part(self, row: ScheduledRequest, end: int, num_guesses: int) -> ScheduledRequest:
        """What the draft model has to compute of a request, up to ``end`` tokens."""
        index = self._tables[row.request_id].index
        start = end - 1 if self._shares_cache else int(self._num_computed[index])
        self._num_computed[index] = end
        return ScheduledRequest(row.request_id, start, end - start, num_draft_tokens=num_guesses)

    def _forward(self, parts: Sequence[ScheduledRequest]) -> tuple[InputBatch, Tensor]:
        batch = make_batch(parts, self._tables, self._block_size)
        ctx = ForwardContext(self._backend, self._caches, self._backend.prepare(batch.layout))
        token_ids, positions = (
            torch.from_numpy(array).to(self._model.device)
            for array in (batch.token_ids, batch.positions)
        )
        return batch, self._model(token_ids, positions, ctx)
