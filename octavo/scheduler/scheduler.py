"""Continuous batching: every step is planned anew from what each request has left to do.

There is one notion of work, ``known - computed`` tokens, and no phase. A step's budget goes first
to rows with one token left (decodes), then to prompts already begun, then to waiting requests in
the order of the policy; a prompt takes what is left and goes on in later steps. When blocks run
out, the last request by policy gives back all of its own and waits: its tokens are known, so it
only has to compute them again, and most of its full blocks will still be in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from octavo.core.config import SchedulerConfig
from octavo.core.errors import ContextTooLong, InvalidParameter
from octavo.core.plan import (
    RequestDelta,
    RowResult,
    ScheduledRequest,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from octavo.core.protocols import Clock
from octavo.core.request import Request, RequestState
from octavo.core.types import RequestId
from octavo.kv.manager import BlockDelta, BlockManager
from octavo.scheduler.budget import StepBudget
from octavo.scheduler.draft import DraftPlan
from octavo.scheduler.policy import POLICIES, Rank
from octavo.scheduler.queue import WaitingLine
from octavo.scheduler.siblings import Siblings
from octavo.scheduler.stop import Stop, check_stop


@dataclass(slots=True)
class StepCounters:
    """What happened since the last step, for `octavo.metrics.stats.StepStats`."""

    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0


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
        self._siblings = Siblings()
        self._outgrown: list[Request] = []
        """Requests that all blocks together do not suffice for."""
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
        for completion in (request, *self._siblings.make(request)):
            name = completion.request_id
            self._requests[name] = completion
            self._ranks[name] = self._policy(completion, next(self._numbers))
        self._waiting.insert(request, self._ranks[request.request_id])

    def abort(self, request_ids: Iterable[RequestId]) -> list[RequestDelta]:
        """Ends these completions at once and gives back their blocks; unknown ids are ignored."""
        found = [self._requests[name] for name in request_ids if name in self._requests]
        return [self._end(request, Stop("abort")) for request in found]

    def schedule(self) -> StepPlan | None:
        """Plans the next step, or returns None if nothing can be computed."""
        budget = StepBudget(self._config)
        budget.short_prompts_wait = any(
            not budget.is_long(request.num_remaining_tokens) for request in self._waiting
        )
        draft = DraftPlan(budget)
        num_preemptions = self.counters.num_preemptions
        self._plan_running(draft)
        # Whoever has just lost blocks must not see newcomers take them.
        if self.counters.num_preemptions == num_preemptions:
            self._plan_waiting(draft)
        if not len(draft) and not self._released:
            return None
        released, self._released = tuple(self._released), []
        return draft.finish(next(self._step_ids), released)

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
        names = [row.request_id for row in plan.rows if row.request_id in self._requests]
        return [self._end(self._requests[name], Stop("error"), error=error) for name in names]

    def end_outgrown(self) -> list[RequestDelta]:
        """Ends the requests for which `schedule` found all blocks together to be too few."""
        outgrown, self._outgrown = self._outgrown, []
        return [self._end(request, Stop("length")) for request in outgrown]

    # ------------------------------------------------------------------ planning

    def _check_at_the_door(self, request: Request) -> None:
        prompt = request.num_prompt_tokens
        capacity = self.blocks.num_blocks * self.blocks.block_size
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

    def _plan_running(self, draft: DraftPlan) -> None:
        decodes: list[Request] = []
        others: list[Request] = []
        for request in self._running.values():
            remaining = request.num_remaining_tokens
            (decodes if remaining == 1 else others).append(request)
            draft.budget.num_long_prompts += draft.budget.is_long(remaining)
        for request in (*decodes, *others):
            if request.request_id not in self._running:
                continue  # preempted for the sake of one before it
            num_tokens = draft.budget.grant(request)
            if num_tokens == 0:
                continue
            delta = self._reserve(request, num_tokens, draft)
            if delta is not None:
                draft.add(request, num_tokens, delta)

    def _reserve(self, request: Request, num_tokens: int, draft: DraftPlan) -> BlockDelta | None:
        """Blocks for a running request, if need be at the expense of those ranked last."""
        while (delta := self.blocks.reserve(request, num_tokens)) is None:
            if len(self._running) == 1:
                self._outgrown.append(request)
                return None
            victim = max(self._running, key=self._ranks.__getitem__)
            draft.take_back(victim)
            self._preempt(self._running[victim])
            if victim == request.request_id:
                return None
        return delta

    def _plan_waiting(self, draft: DraftPlan) -> None:
        budget = draft.budget
        for request in list(self._waiting):
            if budget.num_tokens == 0 or len(self._running) >= self._config.max_num_seqs:
                return
            if budget.is_long(request.num_remaining_tokens) and not budget.admits_long_prompt:
                continue  # short ones behind it may pass
            if not self._admit(request, draft):
                return
            # What came from the cache is no work: only now is it known how long the prompt is.
            budget.num_long_prompts += budget.is_long(request.num_remaining_tokens)

    def _admit(self, request: Request, draft: DraftPlan) -> bool:
        """Gives a waiting request its cached prefix and blocks; False if there are too few."""
        name = request.request_id
        num_cached = self._begin_table(request)
        num_tokens = draft.budget.grant(request)
        delta = self.blocks.reserve(request, num_tokens)
        if delta is None:
            self.blocks.free(name)
            request.num_computed_tokens = 0
            if not self._running:
                self._outgrown.append(request)
            return False
        self._waiting.remove(name, self._ranks[name])
        self._running[name] = request
        request.state = RequestState.RUNNING
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_cached
            request.first_scheduled_s = self._clock()
        self.counters.num_prefix_queries += request.num_known_tokens
        self.counters.num_prefix_hits += num_cached
        draft.admit(request, num_tokens, delta, self.blocks.block_ids(name))
        return True

    def _begin_table(self, request: Request) -> int:
        """Starts a block table from a sibling's blocks or the prefix cache; returns its tokens."""
        first = self._running.get(self._siblings.first_of(request.request_id) or "")
        is_fresh = not request.output_token_ids
        if first is not None and is_fresh and first.num_computed_tokens >= first.num_prompt_tokens:
            self.blocks.fork(first, request)
        else:
            request.num_computed_tokens = self.blocks.match(request).num_tokens
        return request.num_computed_tokens

    def _preempt(self, request: Request) -> None:
        self._leave(request)
        request.state = RequestState.WAITING
        request.num_preemptions += 1
        self.counters.num_preemptions += 1
        self._waiting.insert(request, self._ranks[request.request_id])
        self._let_siblings_go(request.request_id)

    # ------------------------------------------------------------------ results

    def _commit_row(
        self, request: Request, row: ScheduledRequest, outcome: RowResult
    ) -> RequestDelta | None:
        if outcome.error is not None:
            return self._end(request, Stop("error"), error=outcome.error)
        prompt, end = request.num_prompt_tokens, row.start + row.num_new_tokens
        if row.start < prompt:
            self.counters.num_prompt_tokens += min(end, prompt) - row.start
        request.num_computed_tokens = end
        self.blocks.commit(request)
        if row.start < prompt <= end:
            self._let_siblings_go(request.request_id)
        stop, num_kept = None, 0
        for token in outcome.token_ids:
            request.output_token_ids.append(token)
            num_kept += 1
            stop = check_stop(request, self._max_model_len)
            if stop is not None:
                break
        self.counters.num_generated_tokens += num_kept
        outcome = RowResult(
            request.request_id,
            outcome.token_ids[:num_kept],
            outcome.logprobs[:num_kept],
            _unseen_prompt_logprobs(request, row, outcome),
        )
        if stop is not None:
            return self._end(request, stop, outcome)
        if not outcome.token_ids and not outcome.prompt_logprobs:
            return None
        return _delta(request, outcome)

    def _end(
        self,
        request: Request,
        stop: Stop,
        outcome: RowResult | None = None,
        *,
        error: str | None = None,
    ) -> RequestDelta:
        """Takes a request out of everything, and says what its client must still hear."""
        name = request.request_id
        was_held = self._siblings.forget(request)
        if name in self._running:
            self._leave(request)
        elif not was_held:
            self._waiting.remove(name, self._ranks[name])
        self._let_siblings_go(name)
        request.state = RequestState.FINISHED
        request.finish_reason, request.stop_reason = stop
        del self._requests[name], self._ranks[name]
        return _delta(request, outcome or RowResult(name), error)

    def _leave(self, request: Request) -> None:
        """Gives back everything that a running request holds, here and at the executor."""
        name = request.request_id
        del self._running[name]
        self.blocks.free(name)
        request.num_computed_tokens = 0
        self._released.append(name)

    def _let_siblings_go(self, request_id: RequestId) -> None:
        for sibling in self._siblings.let_go(request_id):
            self._waiting.insert(sibling, self._ranks[sibling.request_id])


def _delta(request: Request, outcome: RowResult, error: str | None = None) -> RequestDelta:
    """What a client hears of a step; the first time also how its request began."""
    is_first = not request.is_announced and request.first_scheduled_s is not None
    request.is_announced |= is_first
    queue_s = (request.first_scheduled_s or 0.0) - request.arrival_s
    return RequestDelta(
        request_id=request.request_id,
        new_token_ids=outcome.token_ids,
        logprobs=outcome.logprobs,
        prompt_logprobs=outcome.prompt_logprobs,
        num_cached_tokens=request.num_cached_tokens if is_first else None,
        queue_s=queue_s if is_first else None,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        error=error,
    )


def _unseen_prompt_logprobs(
    request: Request, row: ScheduledRequest, outcome: RowResult
) -> tuple[TokenLogprobs, ...]:
    """Those that were not reported before a preemption made the prompt start again."""
    seen = max(0, request.num_prompt_logprobs - row.start)
    unseen = outcome.prompt_logprobs[seen:]
    request.num_prompt_logprobs += len(unseen)
    return unseen
