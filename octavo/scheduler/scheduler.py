"""Continuous batching: every step is planned anew from what each request has left to do.

There is one notion of work, ``known - computed`` tokens, and no phase. A step's budget goes first
to rows with one token left (decodes), then to prompts already begun, then to waiting requests in
the order of the policy; a prompt takes what is left and goes on in later steps. When blocks run
out, the last request by policy gives back all of its own and waits: its tokens are known, so it
only has to compute them again, and most of its full blocks will still be in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import count

from octavo.core.config import SchedulerConfig
from octavo.core.errors import InvalidParameter
from octavo.core.plan import RequestDelta, RowResult, ScheduledRequest, StepPlan, StepResult
from octavo.core.protocols import Clock
from octavo.core.request import Request, RequestState, fork_id
from octavo.core.types import RequestId
from octavo.kv.manager import NO_HIT, BlockDelta, BlockManager
from octavo.scheduler.account import StepAccount
from octavo.scheduler.budget import StepBudget
from octavo.scheduler.counters import StepCounters
from octavo.scheduler.deltas import client_delta, unseen_prompt_logprobs
from octavo.scheduler.door import check_fits
from octavo.scheduler.draft import DraftPlan
from octavo.scheduler.pace import Pace
from octavo.scheduler.policy import POLICIES, Rank
from octavo.scheduler.queue import WaitingLine
from octavo.scheduler.siblings import Siblings
from octavo.scheduler.stop import Stop, check_stop
from octavo.speculate.speculator import Speculator


class Scheduler:
    """Owns all unfinished requests. Not thread-safe; one per engine.

    `schedule` and `commit` alternate; `add` and `abort` may come between them.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        *,
        max_model_len: int,
        clock: Clock,
        speculator: Speculator | None = None,
    ) -> None:
        self.blocks = blocks
        self.max_model_len = max_model_len
        self.counters = StepCounters()
        self.account = StepAccount()
        """Of the last step that was planned."""
        self._config = config
        self._clock = clock
        self._speculator = speculator
        target_ms = config.target_itl_ms
        self._pace = None if target_ms is None else Pace(target_ms / 1000)
        self._began_s = 0.0
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
    def config(self) -> SchedulerConfig:
        """Limits and policy."""
        return self._config

    @property
    def line(self) -> list[RequestId]:
        """Who waits for a first row or for another one, in the order of the policy."""
        return [request.request_id for request in self._waiting]

    @property
    def requests(self) -> Collection[Request]:
        """All unfinished completions, as they arrived. To be read only."""
        return self._requests.values()

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
        check_fits(
            request.num_prompt_tokens,
            max_model_len=self.max_model_len,
            capacity=self.blocks.num_blocks * self.blocks.block_size,
            generates=request.generates,
        )
        for index in range(request.params.n):
            name = fork_id(request.request_id, index)
            if name in self._requests:
                raise InvalidParameter(
                    f"request id {name!r} is in use: choose another", param="request_id"
                )
        for completion in (request, *self._siblings.make(request)):
            name = completion.request_id
            self._requests[name] = completion
            self._ranks[name] = self._policy(completion, next(self._numbers))
        self._waiting.insert(request, self._ranks[request.request_id])

    def abort(self, request_ids: Iterable[RequestId]) -> list[RequestDelta]:
        """Ends these completions at once and gives back their blocks; unknown ids are ignored."""
        names = dict.fromkeys(request_ids)  # a name that comes twice ends once
        found = [self._requests[name] for name in names if name in self._requests]
        return [self._end(request, Stop("abort")) for request in found]

    def schedule(self) -> StepPlan | None:
        """Plans the next step, or returns None if nothing can be computed."""
        self._began_s = self._clock()
        self.account = account = StepAccount()
        self.blocks.set_time(self._began_s)
        budget = StepBudget(self._config)
        budget.short_prompts_wait = any(
            not budget.is_long(request.num_remaining_tokens) for request in self._waiting
        )
        draft = DraftPlan(budget)
        if not self._config.enable_chunked_prefill:
            self._plan_waiting(draft)  # prompts first, and nothing beside them
        if not len(draft):
            self._plan_running(draft)
            # Whoever has just lost blocks must not see newcomers take them.
            if account.preempted:
                account.stopped = "preempted"
            elif self._config.enable_chunked_prefill:
                self._plan_waiting(draft)
        if not len(draft) and not self._released:
            return None
        released, self._released = tuple(self._released), []
        return draft.finish(next(self._step_ids), released)

    def commit(self, plan: StepPlan, result: StepResult) -> list[RequestDelta]:
        """Takes in a step's result: tokens, full blocks, finished requests."""
        deltas = []
        now = self._clock()
        for row, outcome in zip(plan.rows, result.rows, strict=True):
            request = self._running.get(row.request_id)
            if request is not None:  # else aborted while the step ran; its name may wait again
                if outcome.token_ids:
                    request.note_tokens(now)
                delta = self._commit_row(request, row, outcome)
                if delta is not None:
                    deltas.append(delta)
        if self._speculator is not None:
            self._speculator.observe_step(plan, result.times)
        if self._pace is not None:
            self._pace.observe(plan.rows, self._clock() - self._began_s)
        return deltas

    def fail(self, plan: StepPlan, error: str) -> list[RequestDelta]:
        """The step as a whole failed: its requests end with an error, all others go on.

        The executor may have failed before it dropped what the plan released, so that is said
        again; it ignores names that it does not know.
        """
        self._released.extend(plan.released)
        names = [row.request_id for row in plan.rows if row.request_id in self._running]
        return [self._end(self._running[name], Stop("error"), error=error) for name in names]

    def end_outgrown(self) -> list[RequestDelta]:
        """Ends the requests for which `schedule` found all blocks together to be too few."""
        outgrown, self._outgrown = self._outgrown, []
        return [self._end(request, Stop("length")) for request in outgrown]

    def check_invariants(self) -> None:
        """Verifies that every request is in one place, and holds blocks only if it runs.

        For use between steps.

        Raises:
            AssertionError: what is wrong, here or in the block manager.
        """
        self.blocks.check_invariants()
        waiting = self._waiting.check()
        places = [*self._running, *waiting, *self._siblings.held_ids()]
        if sorted(places) != sorted(self._requests):
            odd = sorted(set(places) ^ set(self._requests)) or "a request is in two"
            raise AssertionError(f"requests and the places where they may be disagree: {odd}")
        if self._ranks.keys() != self._requests.keys():
            raise AssertionError("requests and ranks disagree")
        if len(self._running) > self._config.max_num_seqs:
            raise AssertionError(f"{len(self._running)} requests run, more than max_num_seqs")
        size = self.blocks.block_size
        for name, request in self._requests.items():
            runs, computed = name in self._running, request.num_computed_tokens
            room = len(self.blocks.block_ids(name)) * size
            if (request.state is RequestState.RUNNING) != runs:
                raise AssertionError(f"{name} is {request.state.value}, but {runs=}")
            if not runs and (room or computed):
                raise AssertionError(f"{name} waits with {room} slots and {computed} tokens")
            if runs and not computed <= room:
                raise AssertionError(f"{name} has {computed} computed tokens in {room} slots")
            if runs and request.num_remaining_tokens < 1:
                raise AssertionError(f"{name} runs, but has nothing left to compute")

    # ------------------------------------------------------------------ planning

    def _plan_running(self, draft: DraftPlan) -> None:
        budget = draft.budget
        decodes: list[Request] = []
        others: list[Request] = []
        for request in self._running.values():
            remaining = request.num_remaining_tokens
            if remaining == 1:  # never long
                decodes.append(request)
                continue
            others.append(request)
            budget.num_long_prompts += budget.is_long(remaining)
        self._plan_decodes(decodes, draft)
        if self._pace is not None:
            budget.allowance = self._pace.allowance(draft.rows)
        # Blocks and policy may have brought them here in another order than that of the policy.
        others.sort(key=lambda request: self._ranks[request.request_id])
        for request in others:
            if request.request_id not in self._running:
                continue  # preempted for the sake of one before it
            if budget.is_spent:
                break
            remaining = request.num_remaining_tokens
            self._plan_row(request, budget.grant(remaining, request.num_computed_tokens), draft)

    def _plan_decodes(self, decodes: list[Request], draft: DraftPlan) -> None:
        budget = draft.budget
        if self._speculator is not None:
            self._speculator.begin_step(
                [request.request_id for request in decodes if request.params.speculative]
            )
        num_left = len(decodes)
        for request in decodes:
            if request.request_id not in self._running:
                continue  # preempted for the sake of one before it
            if budget.num_tokens == 0:
                break
            num_left -= 1
            if self._speculator is not None and request.params.speculative:
                spare = budget.num_tokens - 1 - num_left
                if self._plan_guesses(request, spare, draft):
                    continue
                self.counters.count_draft_length(0)
            self._plan_row(request, 1, draft)

    def _plan_row(self, request: Request, num_tokens: int, draft: DraftPlan) -> None:
        """Plans tokens of a running request, if need be at the expense of those ranked last."""
        delta = self.blocks.reserve(request, num_tokens)
        if delta is None:
            delta = self._make_room(request, num_tokens, draft)
        if delta is not None:
            draft.add(request, num_tokens, delta)

    def _plan_guesses(self, request: Request, spare: int, draft: DraftPlan) -> bool:
        """Plans a decode together with guesses of what comes after it; False if there are none,
        or no blocks to spare for them."""
        assert self._speculator is not None
        limit = min(spare, self.max_model_len - request.num_known_tokens)
        if request.params.max_tokens is not None:
            limit = min(limit, request.params.max_tokens - len(request.output_token_ids) - 1)
        guesses = self._speculator.draft(request, limit)
        if not guesses.num_tokens:
            return False
        delta = self.blocks.reserve(request, 1 + guesses.num_tokens)
        if delta is None:
            return False
        draft.add(request, 1 + guesses.num_tokens, delta, guesses)
        self.counters.count_draft_length(guesses.num_tokens)
        return True

    def _make_room(self, request: Request, num_tokens: int, draft: DraftPlan) -> BlockDelta | None:
        """Blocks for a running request at the expense of those ranked last."""
        delta = None
        while delta is None:
            if len(self._running) == 1:
                self._outgrown.append(request)
                return None
            victim = max(self._running, key=self._ranks.__getitem__)
            draft.take_back(victim)
            self._preempt(self._running[victim])
            self.account.preempted.append((victim, request.request_id))
            if victim == request.request_id:
                return None
            delta = self.blocks.reserve(request, num_tokens)
        return delta

    def _plan_waiting(self, draft: DraftPlan) -> None:
        budget, account = draft.budget, self.account
        for request in list(self._waiting):
            if budget.is_spent:
                account.stopped = "time" if budget.num_tokens else "tokens"
                return
            if len(self._running) >= self._config.max_num_seqs:
                account.stopped = "max_num_seqs"
                return
            if budget.is_long(request.num_remaining_tokens) and not budget.admits_long_prompt:
                account.stopped = "long_prompts"
                continue  # short ones behind it may pass
            if not self._admit(request, draft):
                return
            # What came from the cache is no work: only now is it known how long the prompt is.
            budget.num_long_prompts += budget.is_long(request.num_remaining_tokens)

    def _admit(self, request: Request, draft: DraftPlan) -> bool:
        """Gives a waiting request its cached prefix and blocks; False if there are too few."""
        name = request.request_id
        is_forked = self._fork(request)
        hit = NO_HIT if is_forked else self.blocks.match(request)
        request.num_computed_tokens = num_cached = max(request.num_computed_tokens, hit.num_tokens)
        num_tokens = draft.budget.grant(request.num_remaining_tokens, num_cached)
        is_cut = num_tokens < request.num_remaining_tokens
        is_refused = is_cut and not self._config.enable_chunked_prefill
        delta = None if is_refused else self.blocks.reserve(request, num_tokens, hit)
        if delta is None:
            request.num_computed_tokens = 0
            if is_forked:
                self.blocks.free(name)
            if not self._running:
                self._outgrown.append(request)
            self.account.stopped = "whole_prompt" if is_refused else "blocks"
            return False
        self._waiting.remove(name, self._ranks[name])
        self._running[name] = request
        request.state = RequestState.RUNNING
        is_first = request.num_cached_tokens is None
        if is_first:
            request.num_cached_tokens = num_cached
            request.first_scheduled_s = self._clock()
        if is_forked:
            self.counters.num_forked_tokens += num_cached
        elif self.blocks.is_looked_up(request):
            self.counters.count_looked_up(request.num_known_tokens, num_cached, is_first=is_first)
        draft.admit(request, num_tokens, delta, self.blocks.block_ids(name))
        return True

    def _fork(self, request: Request) -> bool:
        """Shares the blocks of the sibling that has computed the prompt, if it still runs."""
        first = self._running.get(self._siblings.first_of(request.request_id) or "")
        if first is None or request.output_token_ids:
            return False
        if first.num_computed_tokens < first.num_prompt_tokens:
            return False
        self.blocks.fork(first, request)
        return True

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
        num_accepted = max(0, len(outcome.token_ids) - 1)
        num_rejected = row.num_draft_tokens - num_accepted if row.num_draft_tokens else 0
        outcome, stop = self._append(request, outcome)
        # After a stop among right guesses, more is computed than known.
        end = min(row.start + row.num_new_tokens - num_rejected, request.num_known_tokens)
        request.num_computed_tokens = end
        self.blocks.commit(request)
        if row.num_draft_tokens:
            self._commit_draft(request, row, num_accepted)
        if row.start < request.num_prompt_tokens:
            self._commit_prompt(request, row.start, end)
        if outcome.prompt_logprobs:
            unseen = unseen_prompt_logprobs(request, row, outcome)
            outcome = outcome._replace(prompt_logprobs=unseen)
        if not request.generates and not request.num_remaining_tokens:
            stop = Stop("length")
        if stop is not None:
            return self._end(request, stop, outcome)
        # The first piece of a prompt is news: the request has left the line.
        if not outcome.token_ids and not outcome.prompt_logprobs and request.is_announced:
            return None
        return client_delta(request, outcome)

    def _append(self, request: Request, outcome: RowResult) -> tuple[RowResult, Stop | None]:
        """Makes tokens known until one ends the request; what comes after it is dropped."""
        for num_kept, token in enumerate(outcome.token_ids, 1):
            request.output_token_ids.append(token)
            self.counters.num_generated_tokens += 1
            is_last = outcome.is_complete and num_kept == len(outcome.token_ids)
            stop = check_stop(request, self.max_model_len, is_complete=is_last)
            if stop is not None:
                kept = outcome._replace(
                    token_ids=outcome.token_ids[:num_kept], logprobs=outcome.logprobs[:num_kept]
                )
                return kept, stop
        return outcome, Stop("stop", keeps_token=True) if outcome.is_complete else None

    def _commit_draft(self, request: Request, row: ScheduledRequest, num_accepted: int) -> None:
        """Gives back the blocks of wrong guesses, and learns from them."""
        num_drafted = row.num_draft_tokens
        request.num_drafted_tokens += num_drafted
        request.num_accepted_tokens += num_accepted
        self.blocks.trim(request)
        self.counters.count_draft(num_accepted, num_drafted)
        if self._speculator is not None:
            self._speculator.observe_draft(request.request_id, num_accepted, num_drafted)

    def _commit_prompt(self, request: Request, start: int, end: int) -> None:
        """Positions ``start`` to ``end`` are computed, and the first of them is in the prompt."""
        prompt = request.num_prompt_tokens
        self.counters.num_prompt_tokens += min(end, prompt) - start
        if end >= prompt:
            self._let_siblings_go(request.request_id)

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
        request.finish_reason, request.stop_reason = stop.finish_reason, stop.stop_reason
        del self._requests[name], self._ranks[name]
        if self._speculator is not None:
            self._speculator.forget(name)
        delta = client_delta(request, outcome or RowResult(name), error)
        return replace(delta, keeps_last_token=True) if stop.keeps_token else delta

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
