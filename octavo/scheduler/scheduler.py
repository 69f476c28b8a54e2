"""Continuous batching: every step is planned anew from what each request has left to do.

There is one notion of work, ``known - computed`` tokens, and no phase. A step's budget goes first
to rows with one token left (decodes), then to prompts already begun, then to waiting requests in
the order of the policy; a prompt takes what is left and goes on in later steps. When blocks run
out, the last request by policy gives back all of its own and waits: its tokens are known, so it
only has to compute them again, and most of its full blocks will still be in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count

from octavo.core.config import SchedulerConfig
from octavo.core.errors import ContextTooLong, InvalidParameter
from octavo.core.params import MAX_SEED
from octavo.core.plan import (
    NewRequest,
    RequestDelta,
    RowResult,
    ScheduledRequest,
    StepPlan,
    StepResult,
)
from octavo.core.protocols import Clock
from octavo.core.request import Request, RequestState, fork_id
from octavo.core.types import FinishReason, RequestId, TokenId
from octavo.kv.manager import BlockDelta, BlockManager
from octavo.scheduler.budget import StepBudget
from octavo.scheduler.policy import POLICIES, Rank
from octavo.scheduler.queue import WaitingLine
from octavo.scheduler.stop import check_stop


@dataclass(slots=True)
class StepCounters:
    """What happened since the last step, for `octavo.metrics.stats.StepStats`."""

    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0


@dataclass(slots=True)
class _Draft:
    """A plan under construction. Rows may still be taken back."""

    budget: StepBudget
    rows: dict[RequestId, tuple[ScheduledRequest, BlockDelta]]
    admitted: dict[RequestId, NewRequest]

    def add(self, request: Request, num_tokens: int, delta: BlockDelta) -> None:
        start = request.num_computed_tokens
        row = ScheduledRequest(
            request.request_id,
            start,
            num_tokens,
            delta.new_block_ids,
            (),
            start + num_tokens == request.num_known_tokens,
        )
        self.rows[request.request_id] = (row, delta)
        self.budget.num_tokens -= num_tokens

    def take_back(self, request_id: RequestId) -> None:
        entry = self.rows.pop(request_id, None)
        if entry is not None:
            self.budget.num_tokens += entry[0].num_new_tokens


class Scheduler:
    """Owns all unfinished requests. Not thread-safe; one per engine.

    `schedule` and `commit` alternate; `add` and `abort` may come between them.
    """

    def __init__(
        self, config: SchedulerConfig, blocks: BlockManager, *, max_model_len: int, clock: Clock
    ) -> None:
        self.blocks = blocks
        self.counters = StepCounters()
        self._config = config
        self._max_model_len = max_model_len
        self._clock = clock
        self._policy = POLICIES[config.policy]
        self._numbers = count()
        self._step_ids = count()
        self._requests: dict[RequestId, Request] = {}
        self._ranks: dict[RequestId, Rank] = {}
        self._running: dict[RequestId, Request] = {}
        self._waiting = WaitingLine()
        self._siblings: dict[RequestId, list[Request]] = {}
        """Completions that wait until the first of their request has its prompt computed."""
        self._fork_of: dict[RequestId, RequestId] = {}
        self._released: list[RequestId] = []
        """Known to the executor, and to be dropped with the next plan."""

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that hold nothing: new, preempted, or waiting for their sibling's prompt."""
        return len(self._requests) - len(self._running)

    @property
    def request_ids(self) -> list[RequestId]:
        """All unfinished completions."""
        return list(self._requests)

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Takes in a client's request, all ``params.n`` completions of it.

        Raises:
            ContextTooLong: it could never be computed; the message holds the limits.
            InvalidParameter: its prompt is empty, or its id is in use.
        """
        self._check_at_the_door(request)
        self._enter(request)
        self._waiting.insert(request, self._ranks[request.request_id])
        siblings = [_sibling(request, index) for index in range(1, request.params.n)]
        for sibling in siblings:
            self._enter(sibling)
            self._fork_of[sibling.request_id] = request.request_id
        if siblings:
            self._siblings[request.request_id] = siblings

    def abort(self, request_ids: Iterable[RequestId]) -> list[RequestDelta]:
        """Ends these completions at once and gives back their blocks; unknown ids are ignored."""
        found = [self._requests[name] for name in request_ids if name in self._requests]
        return [self._end(request, "abort") for request in found]

    def schedule(self) -> StepPlan | None:
        """Plans the next step, or returns None if nothing can be computed."""
        budget = StepBudget(self._config, others_wait=len(self._waiting) > 0)
        draft = _Draft(budget, {}, {})
        num_preempted = self.counters.num_preemptions
        self._plan_running(draft)
        # Whoever has just lost blocks, or found none, must not see newcomers take them.
        if self.counters.num_preemptions == num_preempted:
            self._plan_waiting(draft)
        if not draft.rows and not self._released:
            return None
        released, self._released = tuple(self._released), []
        entries = draft.rows.values()
        return StepPlan(
            step_id=next(self._step_ids),
            rows=tuple(row for row, _ in entries),
            admitted=tuple(draft.admitted[name] for name in draft.rows if name in draft.admitted),
            released=released,
            copies=tuple(copy for _, delta in entries for copy in delta.copies),
        )

    def commit(self, plan: StepPlan, result: StepResult) -> list[RequestDelta]:
        """Takes in a step's result: tokens, full blocks, finished requests."""
        deltas = []
        for row, outcome in zip(plan.rows, result.rows, strict=True):
            request = self._requests.get(row.request_id)
            if request is not None:  # else it was aborted while the step ran
                delta = self._commit_row(request, row, outcome)
                if delta is not None:
                    deltas.append(delta)
        return deltas

    def fail(self, plan: StepPlan, error: str) -> list[RequestDelta]:
        """The step as a whole failed: its requests end with an error, all others go on."""
        rows = [
            self._requests[row.request_id] for row in plan.rows if row.request_id in self._requests
        ]
        return [self._end(request, "error", error=error) for request in rows]

    def end_stuck(self) -> list[RequestDelta]:
        """Ends requests that `schedule` found to be too long for the whole pool."""
        stuck = [r for r in self._requests.values() if r.finish_reason is not None]
        return [self._end(request, "length") for request in stuck]

    # ------------------------------------------------------------------ admission

    def _check_at_the_door(self, request: Request) -> None:
        prompt, capacity = (
            request.num_prompt_tokens,
            self.blocks.num_blocks * self.blocks.block_size,
        )
        if prompt == 0:
            raise InvalidParameter(
                "the prompt is empty: it needs at least one token", param="prompt"
            )
        if request.request_id in self._requests:
            raise InvalidParameter(
                f"request id {request.request_id!r} is in use: choose another", param="request_id"
            )
        if prompt + 1 > self._max_model_len:
            raise ContextTooLong(
                f"the prompt has {prompt} tokens, and at least one token of output needs room, but "
                f"this model's context is {self._max_model_len} tokens: shorten the prompt to "
                f"{self._max_model_len - 1} tokens or less",
                param="prompt",
            )
        if prompt + 1 > capacity:
            raise ContextTooLong(
                f"the prompt has {prompt} tokens, but the whole KV cache holds {capacity}: shorten "
                "the prompt, or raise memory_utilization or num_blocks",
                param="prompt",
            )

    def _enter(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._ranks[request.request_id] = self._policy(request, next(self._numbers))

    # ------------------------------------------------------------------ planning

    def _plan_running(self, draft: _Draft) -> None:
        running = list(self._running.values())
        draft.budget.num_long_prompts = sum(
            draft.budget.is_long(request.num_remaining_tokens) for request in running
        )
        decodes = [request for request in running if request.num_remaining_tokens == 1]
        others = [request for request in running if request.num_remaining_tokens > 1]
        for request in (*decodes, *others):
            if request.request_id not in self._running:
                continue  # preempted for the sake of one before it
            num_tokens = draft.budget.grant(request)
            if num_tokens == 0:
                continue
            delta = self._reserve(request, num_tokens, draft)
            if delta is not None:
                draft.add(request, num_tokens, delta)

    def _reserve(self, request: Request, num_tokens: int, draft: _Draft) -> BlockDelta | None:
        """Blocks for a running request, if need be at the expense of those ranked last."""
        while (delta := self.blocks.reserve(request, num_tokens)) is None:
            victim = max(self._running, key=self._ranks.__getitem__)
            if len(self._running) == 1:
                # All blocks are its own, and they do not suffice: nothing could ever help.
                request.finish_reason = "length"
                return None
            draft.take_back(victim)
            self._preempt(self._running[victim])
            if victim == request.request_id:
                return None
        return delta

    def _plan_waiting(self, draft: _Draft) -> None:
        budget = draft.budget
        for request in list(self._waiting):
            if budget.num_tokens == 0 or len(self._running) >= self._config.max_num_seqs:
                return
            is_long = budget.is_long(request.num_remaining_tokens)
            if is_long and not budget.admits_long_prompt:
                continue  # short ones behind it may pass
            if not self._admit(request, draft):
                return
            budget.num_long_prompts += is_long

    def _admit(self, request: Request, draft: _Draft) -> bool:
        """Gives a waiting request its cached prefix and blocks; False if there are too few."""
        name = request.request_id
        num_cached = self._begin_table(request)
        num_tokens = draft.budget.grant(request)
        delta = self.blocks.reserve(request, num_tokens)
        if delta is None:
            self.blocks.free(name)
            request.num_computed_tokens = 0
            if not self._running and not draft.rows:
                request.finish_reason = "length"
            return False
        self._waiting.remove(name, self._ranks[name])
        self._running[name] = request
        request.state = RequestState.RUNNING
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_cached
            request.first_scheduled_s = self._clock()
        self.counters.num_prefix_queries += request.num_known_tokens
        self.counters.num_prefix_hits += num_cached
        table = self.blocks.block_ids(name)
        known_blocks = table[: len(table) - len(delta.new_block_ids)]
        draft.admitted[name] = _new_request(request, _before_copies(known_blocks, delta))
        draft.add(request, num_tokens, delta)
        return True

    def _begin_table(self, request: Request) -> int:
        """Starts a block table from a sibling's blocks or the prefix cache; returns its tokens."""
        parent = self._running.get(self._fork_of.get(request.request_id, ""))
        if parent is not None and parent.num_computed_tokens >= parent.num_prompt_tokens:
            if not request.output_token_ids:
                self.blocks.fork(parent, request)
                return request.num_computed_tokens
        hit = self.blocks.match(request)
        request.num_computed_tokens = hit.num_tokens
        return hit.num_tokens

    def _preempt(self, request: Request) -> None:
        self._leave(request)
        request.state = RequestState.WAITING
        request.num_preemptions += 1
        self.counters.num_preemptions += 1
        self._waiting.insert(request, self._ranks[request.request_id])
        self._release_siblings(request)

    # ------------------------------------------------------------------ results

    def _commit_row(
        self, request: Request, row: ScheduledRequest, outcome: RowResult
    ) -> RequestDelta | None:
        if outcome.error is not None:
            return self._end(request, "error", error=outcome.error)
        end = row.start + row.num_new_tokens
        self.counters.num_prompt_tokens += min(end, request.num_prompt_tokens) - min(
            row.start, request.num_prompt_tokens
        )
        request.num_computed_tokens = end
        self.blocks.commit(request)
        if end >= request.num_prompt_tokens:
            self._release_siblings(request)
        kept: list[TokenId] = []
        for token in outcome.token_ids:
            request.output_token_ids.append(token)
            kept.append(token)
            stop = check_stop(request, self._max_model_len)
            if stop is not None:
                self.counters.num_generated_tokens += len(kept)
                delta = self._end(request, stop.finish_reason, stop_reason=stop.stop_reason)
                return _with_tokens(delta, kept, outcome)
        self.counters.num_generated_tokens += len(kept)
        if not kept and not outcome.prompt_logprobs:
            return None
        return _with_tokens(self._delta(request), kept, outcome)

    def _delta(self, request: Request) -> RequestDelta:
        if request.is_announced or request.first_scheduled_s is None:
            return RequestDelta(request_id=request.request_id)
        request.is_announced = True
        return RequestDelta(
            request_id=request.request_id,
            num_cached_tokens=request.num_cached_tokens,
            queue_s=request.first_scheduled_s - request.arrival_s,
        )

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        *,
        stop_reason: TokenId | None = None,
        error: str | None = None,
    ) -> RequestDelta:
        name = request.request_id
        delta = replace(
            self._delta(request), finish_reason=reason, stop_reason=stop_reason, error=error
        )
        if name in self._running:
            self._leave(request)
        elif not self._is_held_back(request):
            self._waiting.remove(name, self._ranks[name])
        self._release_siblings(request)
        request.state = RequestState.FINISHED
        request.finish_reason, request.stop_reason = reason, stop_reason
        del self._requests[name], self._ranks[name]
        self._fork_of.pop(name, None)
        return delta

    def _leave(self, request: Request) -> None:
        """Gives back everything that a running request holds, here and at the executor."""
        name = request.request_id
        del self._running[name]
        self.blocks.free(name)
        request.num_computed_tokens = 0
        self._released.append(name)

    def _release_siblings(self, request: Request) -> None:
        """The first completion is ready to be forked from, or will not be soon: no more waiting."""
        for sibling in self._siblings.pop(request.request_id, ()):
            self._waiting.insert(sibling, self._ranks[sibling.request_id])

    def _is_held_back(self, request: Request) -> bool:
        """Whether a completion waits for its sibling's prompt; if so it does so no longer."""
        siblings = self._siblings.get(self._fork_of.get(request.request_id, ""), [])
        if request not in siblings:
            return False
        siblings.remove(request)
        return True


def _sibling(request: Request, index: int) -> Request:
    """Another completion of the same prompt, with a seed of its own."""
    params = replace(request.params, prompt_logprobs=None)
    return Request(
        request_id=fork_id(request.request_id, index),
        prompt_token_ids=request.prompt_token_ids,
        params=params,
        seed=(request.seed + index) & MAX_SEED,
        eos_token_ids=request.eos_token_ids,
        priority=request.priority,
        arrival_s=request.arrival_s,
        cache_salt=request.cache_salt,
    )


def _before_copies(block_ids: tuple[int, ...], delta: BlockDelta) -> tuple[int, ...]:
    """The table as it is before copy-on-write, which the executor applies itself."""
    table = list(block_ids)
    for copy in delta.copies:
        table[copy.table_index] = copy.source
    return tuple(table)


def _new_request(request: Request, block_ids: tuple[int, ...]) -> NewRequest:
    return NewRequest(
        request_id=request.request_id,
        token_ids=tuple(request.token_ids()),
        num_prompt_tokens=request.num_prompt_tokens,
        params=request.params,
        seed=request.seed,
        eos_token_ids=request.eos_token_ids,
        block_ids=block_ids,
    )


def _with_tokens(delta: RequestDelta, tokens: list[TokenId], outcome: RowResult) -> RequestDelta:
    return replace(
        delta,
        new_token_ids=tuple(tokens),
        logprobs=outcome.logprobs[: len(tokens)],
        prompt_logprobs=outcome.prompt_logprobs,
    )
