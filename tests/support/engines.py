"""Engines around the fake executor, and drivers for them."""

from __future__ import annotations

import itertools
from typing import Any

from support.fake_executor import FakeExecutor

from octavo.core.config import SchedulerConfig
from octavo.core.params import SamplingParams
from octavo.core.plan import RequestDelta, TokenLogprobs
from octavo.core.request import Request
from octavo.engine.core import Engine
from octavo.kv.manager import BlockManager
from octavo.scheduler.scheduler import Scheduler


class Harness:
    """A whole engine on a fake device, with invariants checked after every step."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 200,
        caching: bool = True,
        executor_options: dict[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        self.config = SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, **limits})
        self.blocks = BlockManager(num_blocks, block_size, enable_prefix_caching=caching)
        ticks = itertools.count()
        self.clock = lambda: float(next(ticks))
        self.scheduler = Scheduler(
            self.config, self.blocks, max_model_len=max_model_len, clock=self.clock
        )
        self.executor = FakeExecutor(
            num_blocks,
            block_size,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            max_num_seqs=self.config.max_num_seqs,
            **(executor_options or {}),
        )
        self.engine = Engine(self.scheduler, self.executor, clock=self.clock, check_invariants=True)
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, RequestDelta] = {}
        self.firsts: dict[str, RequestDelta] = {}
        self.scores: dict[str, list[TokenLogprobs]] = {}
        self.embeddings: dict[str, bytes] = {}

    def add(self, name: str, prompt: list[int], **fields: Any) -> Request:
        params = {"max_tokens": 5, "ignore_eos": True, **fields.pop("params", {})}
        request = Request(
            request_id=name,
            prompt_token_ids=tuple(prompt),
            params=SamplingParams(**params),
            seed=fields.pop("seed", 0),
            arrival_s=self.clock(),
            **fields,
        )
        self.engine.add(request)
        return request

    def take(self, deltas: list[RequestDelta]) -> None:
        for delta in deltas:
            assert delta.request_id not in self.ended, "news of a request that has ended"
            self.firsts.setdefault(delta.request_id, delta)
            self.outputs.setdefault(delta.request_id, []).extend(delta.new_token_ids)
            self.scores.setdefault(delta.request_id, []).extend(delta.prompt_logprobs)
            if delta.embedding is not None:
                assert delta.request_id not in self.embeddings, "an embedding twice"
                self.embeddings[delta.request_id] = delta.embedding
            if delta.finish_reason is not None:
                self.ended[delta.request_id] = delta

    def step(self) -> Any:
        deltas, stats = self.engine.step()
        self.take(deltas)
        return stats

    def abort(self, *names: str) -> None:
        self.take(self.engine.abort(names))
        self.scheduler.check_invariants()

    def run(self, max_steps: int = 5000) -> int:
        """Steps until nothing is left; returns how many it took."""
        for number in range(max_steps):
            if not self.engine.has_work:
                assert self.blocks.stats().num_used_blocks == 0, "blocks are lost"
                return number
            self.step()
        raise AssertionError(f"{self.engine.has_work=} after {max_steps} steps")
