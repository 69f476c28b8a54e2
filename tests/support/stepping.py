"""Drives a `ModelRunner` with hand-written plans: a scheduler as simple as can be."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from octavo.attention.base import Placement
from octavo.attention.select import choose
from octavo.core.params import SamplingParams
from octavo.core.plan import (
    BlockCopy,
    NewRequest,
    RowResult,
    ScheduledRequest,
    StepPlan,
    StepResult,
)
from octavo.layers.attention import attention_spec
from octavo.models.decoder import Decoder
from octavo.runner.device import Cpu
from octavo.runner.model_runner import ModelRunner, RunnerLimits

GREEDY = SamplingParams(temperature=0.0, max_tokens=None)


def make_runner(
    model: Decoder,
    *,
    num_blocks: int = 64,
    block_size: int = 16,
    max_num_seqs: int = 16,
    max_model_len: int = 256,
    backend: str = "sdpa",
) -> ModelRunner:
    placement = Placement(
        device=torch.device("cpu"), dtype=model.dtype, kv_dtype=model.dtype, block_size=block_size
    )
    limits = RunnerLimits(
        num_blocks=num_blocks, max_num_seqs=max_num_seqs, max_model_len=max_model_len
    )
    return ModelRunner(
        model, choose(attention_spec(model.spec), placement, backend), Cpu(1), limits
    )


class Stepper:
    """Requests of a test: known tokens, computed counts, and blocks drawn from a shuffled pool."""

    def __init__(
        self, runner: ModelRunner, *, num_blocks: int = 64, block_size: int = 16, seed: int = 0
    ) -> None:
        self.runner, self.block_size = runner, block_size
        self.pool = list(range(num_blocks))
        random.Random(seed).shuffle(self.pool)
        self.known: dict[str, list[int]] = {}
        self.prompts: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.blocks: dict[str, list[int]] = {}
        self.params: dict[str, SamplingParams] = {}
        self.released: list[str] = []
        self.admitted: set[str] = set()
        self.steps = 0

    def add(
        self,
        request_id: str,
        tokens: Sequence[int],
        *,
        params: SamplingParams = GREEDY,
        num_prompt_tokens: int | None = None,
        block_ids: Sequence[int] = (),
        computed: int = 0,
    ) -> None:
        """Makes a request known; its first row admits it."""
        self.known[request_id] = list(tokens)
        self.prompts[request_id] = num_prompt_tokens or len(tokens)
        self.computed[request_id] = computed
        self.blocks[request_id] = list(block_ids)
        self.params[request_id] = params

    def release(self, request_id: str, *, keep_blocks: bool = False) -> None:
        """Drops a request with the next step."""
        self.released.append(request_id)
        self.admitted.discard(request_id)
        if not keep_blocks:
            self.pool += self.blocks[request_id]

    def plan(self, counts: dict[str, int], copies: Sequence[BlockCopy] = ()) -> StepPlan:
        """A plan for the next ``counts[id]`` tokens of each request."""
        rows, admitted = [], []
        for request_id, count in counts.items():
            if request_id not in self.admitted:
                self.admitted.add(request_id)
                admitted.append(self._new_request(request_id))
            end = self.computed[request_id] + count
            held = self.blocks[request_id]
            needed = -(-end // self.block_size) - len(held)
            new = [self.pool.pop() for _ in range(needed)]
            held += new
            rows.append(
                ScheduledRequest(
                    request_id,
                    self.computed[request_id],
                    count,
                    tuple(new),
                    wants_sample=end == len(self.known[request_id]),
                )
            )
        plan = StepPlan(
            step_id=self.steps,
            rows=tuple(rows),
            admitted=tuple(admitted),
            released=tuple(self.released),
            copies=tuple(copies),
        )
        self.steps += 1
        self.released.clear()
        return plan

    def step(self, counts: dict[str, int], **options: Any) -> dict[str, RowResult]:
        """Runs one step and learns its tokens; results by request."""
        return {row.request_id: row for row in self.run(self.plan(counts, **options)).rows}

    def run(self, plan: StepPlan) -> StepResult:
        """Runs a plan and learns its tokens."""
        self.runner.submit(plan)
        result = self.runner.collect()
        assert result.step_id == plan.step_id
        assert [row.request_id for row in result.rows] == [row.request_id for row in plan.rows]
        for planned, row in zip(plan.rows, result.rows, strict=True):
            self.computed[row.request_id] += planned.num_new_tokens
            self.known[row.request_id] += row.token_ids
            assert len(row.token_ids) == (planned.wants_sample and row.error is None)
        return result

    def generate(self, num_tokens: int, *, chunk: int = 10**9) -> dict[str, list[int]]:
        """Runs all requests together until each has ``num_tokens`` more than its prompt."""
        while True:
            counts = {}
            for request_id, known in self.known.items():
                if len(known) - self.prompts[request_id] < num_tokens:
                    counts[request_id] = min(chunk, len(known) - self.computed[request_id])
            if not counts:
                return {
                    request_id: known[self.prompts[request_id] :]
                    for request_id, known in self.known.items()
                }
            self.step(counts)

    def _new_request(self, request_id: str) -> NewRequest:
        return NewRequest(
            request_id=request_id,
            token_ids=tuple(self.known[request_id]),
            num_prompt_tokens=self.prompts[request_id],
            params=self.params[request_id],
            seed=0,
            block_ids=tuple(self.blocks[request_id]),
        )
