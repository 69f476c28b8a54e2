"""An executor without a model, which keeps the books of a real one.

The next token is a function of all known tokens, so what a request generates is known beforehand
(`expected_output`) whatever was scheduled. The KV cache is modelled: computing a token writes (token
id, position, hash of everything up to it) to its slot, and each row reads its whole context back
through its block table. A wrong block, a missing copy or a recycled slot fails at once.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.core.errors import ExecutorError
from octavo.core.plan import (
    NewRequest,
    RowResult,
    ScheduledRequest,
    StepPlan,
    StepResult,
    TokenLogprobs,
)

VOCAB = 50


def fingerprint(before: bytes, token: int) -> bytes:
    return hashlib.blake2b(before + token.to_bytes(4, "little"), digest_size=8).digest()


def prefix_fingerprint(tokens: Sequence[int]) -> bytes:
    value = b""
    for token in tokens:
        value = fingerprint(value, token)
    return value


def next_token(prefix: bytes, seed: int) -> int:
    return hashlib.blake2b(prefix + seed.to_bytes(8, "little"), digest_size=2).digest()[0] % VOCAB


def expected_output(prompt: Sequence[int], seed: int, count: int) -> list[int]:
    """What a request generates, computed straight."""
    value, output = prefix_fingerprint(prompt), []
    for _ in range(count):
        output.append(next_token(value, seed))
        value = fingerprint(value, output[-1])
    return output


@dataclass
class _Row:
    request: NewRequest
    tokens: list[int]
    blocks: list[int]
    pooled: list[int] = field(default_factory=list)
    """Prompt tokens that a mean has seen, in order."""


@dataclass
class FakeExecutor:
    num_blocks: int
    block_size: int
    row_fails: Callable[[ScheduledRequest], bool] = lambda row: False
    step_fails: Callable[[StepPlan], bool] = lambda plan: False
    submit_fails: Callable[[StepPlan], bool] = lambda plan: False
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    plans: list[StepPlan] = field(default_factory=list)
    _rows: dict[str, _Row] = field(default_factory=dict)
    _slots: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)
    _queue: deque[StepPlan] = field(default_factory=deque)
    _unsure: set[str] = field(default_factory=set)
    """In a plan that failed: they may be released without being known here, and no others."""

    @property
    def request_ids(self) -> set[str]:
        return set(self._rows)

    def submit(self, plan: StepPlan) -> None:
        if self.submit_fails(plan):
            self._unsure |= {row.request_id for row in plan.rows}
            raise ExecutorError(f"step {plan.step_id} was told to fail at once")
        self._queue.append(plan)

    def collect(self) -> StepResult:
        plan = self._queue.popleft()
        self.plans.append(plan)
        self._apply(plan)
        if self.step_fails(plan):
            self._unsure |= set(plan.released)
            raise ExecutorError(f"step {plan.step_id} was told to fail")
        rows = tuple(self._run(row) for row in plan.rows)
        return StepResult(step_id=plan.step_id, rows=rows)

    def _apply(self, plan: StepPlan) -> None:
        names = [row.request_id for row in plan.rows]
        assert len(set(names)) == len(names), "a request has two rows"
        assert {new.request_id for new in plan.admitted} <= set(names), "admitted without a row"
        if self.max_num_batched_tokens is not None:
            assert plan.num_tokens <= self.max_num_batched_tokens
        for name in plan.released:
            assert name in self._rows or name in self._unsure, f"{name} is not known here"
            self._rows.pop(name, None)
            self._unsure.discard(name)
        for new in plan.admitted:
            assert new.request_id not in self._rows, "admitted twice"
            self._rows[new.request_id] = _Row(new, list(new.token_ids), list(new.block_ids))
        if self.max_num_seqs is not None:
            assert len(self._rows) <= self.max_num_seqs
        for scheduled in plan.rows:
            self._rows[scheduled.request_id].blocks += scheduled.new_block_ids
        for copy in plan.copies:
            row = self._rows[copy.request_id]
            assert row.blocks[copy.table_index] == copy.source, "a copy of another block"
            row.blocks[copy.table_index] = copy.target
            for offset in range(self.block_size):
                value = self._slots.get(copy.source * self.block_size + offset)
                if value is not None:
                    self._slots[copy.target * self.block_size + offset] = value
        self._check_writers(plan)

    def _check_writers(self, plan: StepPlan) -> None:
        """No block that a row writes into belongs to another row's table."""
        owners: dict[int, set[str]] = {}
        for name, row in self._rows.items():
            for block in row.blocks:
                owners.setdefault(block, set()).add(name)
        for scheduled in plan.rows:
            row, size = self._rows[scheduled.request_id], self.block_size
            end = scheduled.start + scheduled.num_new_tokens
            for index in range(scheduled.start // size, -(-end // size)):
                assert owners[row.blocks[index]] == {scheduled.request_id}, (
                    "a shared block is written"
                )

    def _run(self, scheduled: ScheduledRequest) -> RowResult:
        name = scheduled.request_id
        row = self._rows[name]
        assert scheduled.num_new_tokens >= 1
        end = scheduled.start + scheduled.num_new_tokens
        generates = row.request.params.max_tokens != 0
        assert scheduled.wants_sample == (generates and end == len(row.tokens)), (
            "sample at the last token only"
        )
        for position in range(scheduled.start, end):
            token = row.tokens[position]
            before = self._read(row, position - 1)[2] if position else b""
            self._slots[self._slot(row, position)] = (token, position, fingerprint(before, token))
        for position in range(end):
            assert self._read(row, position)[:2] == (row.tokens[position], position), "wrong slot"
        last = self._read(row, end - 1)[2]
        assert last == prefix_fingerprint(row.tokens[:end]), "context of another prefix"
        if self.row_fails(scheduled):
            return RowResult(name, error="told to fail")
        scores = self._score_prompt(row, scheduled)
        embedding = self._pool_prompt(row, scheduled)
        if not scheduled.wants_sample:
            return RowResult(name, prompt_logprobs=scores, embedding=embedding)
        token = next_token(last, row.request.seed)
        row.tokens.append(token)
        return RowResult(name, (token,), prompt_logprobs=scores, embedding=embedding)

    def _pool_prompt(self, row: _Row, scheduled: ScheduledRequest) -> bytes | None:
        """The tokens that were pooled, which for a mean must be the whole prompt."""
        kind, num_prompt = row.request.params.pooling, row.request.num_prompt_tokens
        if kind is None or len(row.request.token_ids) > num_prompt:
            return None
        end = min(scheduled.start + scheduled.num_new_tokens, num_prompt)
        row.pooled += row.tokens[scheduled.start : end]
        if scheduled.start >= num_prompt or end < num_prompt:
            return None
        return bytes(row.pooled if kind == "mean" else row.pooled[-1:])

    def _score_prompt(self, row: _Row, scheduled: ScheduledRequest) -> tuple[TokenLogprobs, ...]:
        """One for each prompt token after a position of this step; the logprob tells the place."""
        if row.request.params.prompt_logprobs is None:
            return ()
        prompt = row.tokens[: row.request.num_prompt_tokens]
        end = scheduled.start + scheduled.num_new_tokens
        following = list(enumerate(prompt))[scheduled.start + 1 : end + 1]
        return tuple(TokenLogprobs(token, -float(place), 1) for place, token in following)

    def _slot(self, row: _Row, position: int) -> int:
        block = row.blocks[position // self.block_size]
        assert 0 <= block < self.num_blocks
        return block * self.block_size + position % self.block_size

    def _read(self, row: _Row, position: int) -> tuple[int, int, bytes]:
        return self._slots[self._slot(row, position)]
