"""The executor on a real device: plan to arrays, model, sampling, result.

Owns the KV cache and what it must remember of requests. Steps run when they are collected, one
after the other; nothing here knows why the rows were planned.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from octavo.attention.base import AttentionBackend, ForwardContext
from octavo.core.errors import EngineError, ExecutorError
from octavo.core.plan import (
    NewRequest,
    RowResult,
    StepPlan,
    StepResult,
    StepTimes,
    TokenLogprobs,
)
from octavo.core.types import TokenId
from octavo.grammar.store import GrammarStore
from octavo.models.base import CausalModel
from octavo.runner import kv_tensors
from octavo.runner.buffers import RequestTables, Seat
from octavo.runner.device import Device
from octavo.runner.drafter import Drafter, DraftModel
from octavo.runner.input_batch import InputBatch, make_batch, prompt_targets
from octavo.runner.memory import logits_rows
from octavo.runner.pooling import PromptPool
from octavo.sampling.logprobs import prompt_logprobs
from octavo.sampling.masks import MaskFiller
from octavo.sampling.pipeline import Sampled
from octavo.sampling.verify import sample_in_turn

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Faults = dict[str, str]
"""Requests that cannot go on, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """Sizes that the runner's memory is made for."""

    num_blocks: int
    max_num_seqs: int
    max_model_len: int


class _Outputs(NamedTuple):
    """What a step produced, by row of the plan."""

    sampled: dict[int, list[Sampled]]
    prompt: dict[int, tuple[TokenLogprobs, ...]]
    pooled: dict[int, bytes]
    faults: Faults


@dataclass(slots=True)
class _Stopwatch:
    """Adds up the seconds of each part of a step; a part ends when its device work has ended."""

    device: Device
    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.perf_counter)

    def lap(self, part: str) -> None:
        """Books the time since the last lap to this part."""
        self.device.synchronise()
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now


class ModelRunner:
    """Implements `octavo.core.protocols.Executor`.

    Without ``grammars``, requests for structured output end with an error.
    """

    def __init__(
        self,
        model: CausalModel,
        backend: AttentionBackend,
        device: Device,
        limits: RunnerLimits,
        grammars: GrammarStore | None = None,
        draft: DraftModel | None = None,
    ) -> None:
        self._model = model
        self._backend = backend
        self._device = device
        self._block_size = backend.placement.block_size
        self._caches = kv_tensors.allocate(backend, model.spec.num_layers, limits.num_blocks)
        self._tables = RequestTables(
            max_num_seqs=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            block_size=self._block_size,
            vocab_size=model.spec.vocab_size,
        )
        self._drafter = (
            None
            if draft is None
            else Drafter(draft, self._tables, self._caches, num_blocks=limits.num_blocks)
        )
        self._logits_rows = logits_rows(model.spec.vocab_size)
        self._grammars = grammars
        self._masks = MaskFiller(device.num_threads)
        self._submitted: deque[StepPlan] = deque()

    def submit(self, plan: StepPlan) -> None:
        """Queues a step; it runs when it is collected."""
        self._submitted.append(plan)

    def collect(self) -> StepResult:
        """Runs the oldest submitted step.

        What goes wrong for one request alone is an error of its row. Any other exception than
        `ExecutorError` means that nobody knows what state the device and the runner are in.

        Raises:
            ExecutorError: memory ran out, or the plan contradicts what the runner knows. Only the
                plan's own requests are touched: the next step may run.
        """
        assert self._submitted, "collect without submit"
        plan = self._submitted.popleft()
        try:
            with torch.inference_mode():
                return self._run(plan)
        except EngineError:
            raise
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            raise ExecutorError(
                f"step {plan.step_id} ({len(plan.rows)} rows, {plan.num_tokens} tokens) failed on "
                f"{self._device.name}: {type(error).__name__}: {error}"
            ) from error

    def _run(self, plan: StepPlan) -> StepResult:
        watch = _Stopwatch(self._device)
        faults = self._apply(plan)
        if faults:
            seated = replace(
                plan, rows=tuple(row for row in plan.rows if row.request_id not in faults)
            )
            return _with_faults(plan, self._compute(seated, watch), faults)
        return self._compute(plan, watch)

    def _compute(self, plan: StepPlan, watch: _Stopwatch) -> StepResult:
        """Runs the rows, all of which have a seat."""
        if not plan.rows:
            return StepResult(step_id=plan.step_id, rows=())
        if self._drafter is not None:
            watch.lap("prepare")
            plan = self._drafter.draft(plan)
            watch.lap("draft")
        for row in plan.rows:
            if row.draft_token_ids:
                self._tables.write_guesses(self._tables[row.request_id], row.draft_token_ids)
        batch = make_batch(plan.rows, self._tables, self._block_size)
        ctx = ForwardContext(self._backend, self._caches, self._backend.prepare(batch.layout))
        token_ids, positions = (
            torch.from_numpy(array).to(self._device.torch_device)
            for array in (batch.token_ids, batch.positions)
        )
        masks = self._masks.start(
            [self._tables[plan.rows[row].request_id].sampling for row in batch.sampled_rows]
        )
        watch.lap("prepare")
        hidden = self._model(token_ids, positions, ctx)
        watch.lap("forward")
        if masks is not None:
            masks.result()
        faults: Faults = {}
        outputs = _Outputs(
            sampled=self._sample(batch, hidden, plan, watch, faults),
            prompt=self._score_prompts(batch, hidden, plan, watch, faults),
            pooled=self._pool_prompts(batch, hidden, plan, faults),
            faults=faults,
        )
        rows = tuple(self._row_result(index, plan, outputs) for index in range(len(plan.rows)))
        watch.lap("sample")
        times = StepTimes(**{f"{part}_s": spent for part, spent in watch.seconds.items()})
        return StepResult(step_id=plan.step_id, rows=rows, times=times)

    def _apply(self, plan: StepPlan) -> Faults:
        """Brings tables and cache up to the plan, before anything is computed; returns the
        requests that could not be admitted."""
        faults: Faults = {}
        for request_id in plan.released:
            self._tables.release(request_id)
        for request in plan.admitted:
            _guarded(self._admit, request, name=request.request_id, faults=faults)
        for row in plan.rows:
            if row.request_id not in faults:
                self._tables.extend_blocks(row.request_id, row.new_block_ids)
        for copy in plan.copies:
            if copy.request_id not in faults:
                self._tables.replace_block(copy)
        if plan.copies:
            pairs = [(copy.source, copy.target) for copy in plan.copies]
            for cache in self._caches:
                self._backend.copy_blocks(cache, pairs)
            if self._drafter is not None:
                self._drafter.copy_blocks(pairs)
        return faults

    def _admit(self, request: NewRequest) -> None:
        """Gives a request its seat. Whatever its grammar does is its own affair."""
        structured, matcher, fault = request.params.structured, None, None
        if structured is not None and self._grammars is None:
            fault = "this engine cannot constrain its output: leave out what asks for it"
        elif structured is not None and self._grammars is not None:
            output = request.token_ids[request.num_prompt_tokens :]
            try:
                matcher = self._grammars.matcher(structured, output)
            except Exception as error:
                fault = f"structured output is not possible: {error}"
        self._tables.admit(request, matcher).sampling.fault = fault

    def _sample(
        self,
        batch: InputBatch,
        hidden: Tensor,
        plan: StepPlan,
        watch: _Stopwatch,
        faults: Faults,
    ) -> dict[int, list[Sampled]]:
        """Logits and samples of the rows that want one; their tokens become known."""
        sampled: dict[int, list[Sampled]] = {}
        for rows in self._portions(batch.sampled_rows, plan):
            guesses = [plan.rows[row].draft_token_ids for row in rows]
            tokens = [
                token
                for row, draft in zip(rows, guesses, strict=True)
                for token in batch.sampled_tokens(row, len(draft))
            ]
            [(_, logits)] = self._logits(hidden, tokens, tokens, watch)
            seats = [self._tables[plan.rows[row].request_id] for row in rows]
            names = [plan.rows[row].request_id for row in rows]

            def take(
                index: int, token_id: TokenId, seats: list[Seat] = seats, names: list[str] = names
            ) -> bool:
                append = self._tables.append_token
                _guarded(append, seats[index], token_id, name=names[index], faults=faults)
                return names[index] not in faults

            states = [seat.sampling for seat in seats]
            found = sample_in_turn(logits, states, guesses, take=take, fill_masks=self._masks.fill)
            sampled.update(zip(rows, found, strict=True))
            watch.lap("sample")
        return sampled

    def _portions(self, rows: Sequence[int], plan: StepPlan) -> Iterator[list[int]]:
        """Rows in turn, few enough at once for the logits of all their positions."""
        portion: list[int] = []
        num_positions = 0
        for row in rows:
            count = 1 + len(plan.rows[row].draft_token_ids)
            if portion and num_positions + count > self._logits_rows:
                yield portion
                portion, num_positions = [], 0
            portion.append(row)
            num_positions += count
        if portion:
            yield portion

    def _score_prompts(
        self,
        batch: InputBatch,
        hidden: Tensor,
        plan: StepPlan,
        watch: _Stopwatch,
        faults: Faults,
    ) -> dict[int, tuple[TokenLogprobs, ...]]:
        """Log-probabilities of prompt tokens, for the rows whose requests want them."""
        scored: dict[int, tuple[TokenLogprobs, ...]] = {}
        for index, row in enumerate(plan.rows):
            seat = self._tables[row.request_id]
            num_top = seat.params.prompt_logprobs
            targets = prompt_targets(row, seat)
            if num_top is None or not targets:
                continue
            first = int(batch.layout.query_starts[index])
            tokens = range(first, first + len(targets))
            found: tuple[TokenLogprobs, ...] = ()
            for positions, logits in self._logits(hidden, tokens, targets, watch):
                ids = self._tables.token_ids[seat.index, positions[0] : positions[-1] + 1].tolist()
                scores = _guarded(
                    prompt_logprobs, logits, ids, num_top, name=row.request_id, faults=faults
                )
                found += scores or ()
                watch.lap("sample")
            scored[index] = found
        return scored

    def _pool_prompts(
        self, batch: InputBatch, hidden: Tensor, plan: StepPlan, faults: Faults
    ) -> dict[int, bytes]:
        """Embeddings of the prompts that end in this step, for the rows whose requests want one."""
        found: dict[int, bytes] = {}
        for index, row in enumerate(plan.rows):
            seat = self._tables[row.request_id]
            pool = seat.pool
            if pool is None:
                continue
            count = min(row.num_new_tokens, seat.num_prompt_tokens - row.start)
            is_end = row.start + count == seat.num_prompt_tokens
            first = int(batch.layout.query_starts[index])
            part = hidden[first : first + count][pool.wanted(count, is_end=is_end)]
            _guarded(self._pool, pool, part, name=row.request_id, faults=faults)
            if is_end:
                seat.pool = None
                vector = _guarded(pool.result, name=row.request_id, faults=faults)
                if vector is not None:
                    found[index] = vector
        return found

    def _pool(self, pool: PromptPool, hidden: Tensor) -> None:
        if len(hidden):
            pool.add(self._model.normalised(hidden).cpu().numpy())

    def _logits(
        self, hidden: Tensor, tokens: Sequence[int], labels: Sequence[int], watch: _Stopwatch
    ) -> Iterator[tuple[Sequence[int], Tensor]]:
        """(labels, logits) of these packed tokens, few enough at once to bound memory."""
        for begin in range(0, len(tokens), self._logits_rows):
            part = torch.tensor(list(tokens[begin : begin + self._logits_rows]))
            logits = self._model.logits(hidden.index_select(0, part.to(hidden.device)))
            watch.lap("forward")
            yield labels[begin : begin + self._logits_rows], logits

    def _row_result(self, index: int, plan: StepPlan, outputs: _Outputs) -> RowResult:
        """The result of one row."""
        row = plan.rows[index]
        name = row.request_id
        sampled = outputs.sampled.get(index, [])
        first = sampled[0] if sampled else None
        said = RowResult(
            name,
            prompt_logprobs=outputs.prompt.get(index, ()),
            error=outputs.faults.get(name) or (first and first.error),
            embedding=outputs.pooled.get(index),
        )
        if first is None or said.error is not None:
            return said
        if first.is_complete:
            return said._replace(is_complete=True)
        seat = self._tables[name]
        if row.draft_token_ids:
            num_computed = row.start + row.num_new_tokens - len(row.draft_token_ids)
            self._tables.trim_blocks(seat, num_computed + len(sampled) - 1, self._block_size)
        return said._replace(
            token_ids=tuple(item.token_id for item in sampled),
            logprobs=tuple(item.logprobs for item in sampled if item.logprobs is not None),
            is_complete=seat.sampling.is_complete,
        )


def _guarded(
    work: Callable[..., Result], *args: object, name: str, faults: Faults
) -> Result | None:
    """Does what concerns one request alone: if it fails, that request has a fault.

    Raises:
        EngineError: the plan is at fault.
    """
    try:
        return work(*args)
    except (EngineError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        logger.error("request %s cannot go on", name, exc_info=error)
        faults[name] = f"the request failed in the engine: {type(error).__name__}: {error}"
        return None


def _with_faults(plan: StepPlan, result: StepResult, faults: Faults) -> StepResult:
    """The result with a row for each of the plan, in its order."""
    found = {row.request_id: row for row in result.rows}
    rows = (
        found.get(name) or RowResult(name, error=faults[name])
        for name in (row.request_id for row in plan.rows)
    )
    return replace(result, rows=tuple(rows))


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, on the host or on the device, and nothing else."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)  # torch has no class for the host's allocator
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "not enough memory" in text
    )
