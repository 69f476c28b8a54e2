"""A real engine over an executor that needs no model, behind either kind of link.

Every completion repeats its prompt's tokens, one a step, so that what a client should get is known
in advance: see `echo_of`. Scheduler, KV bookkeeping, step loop, links and front end are the real
thing. Run as a program (``python echo_engine.py ADDRESS BEHAVIOUR``) it is the engine's process.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from octavo.core import errors
from octavo.core.cache_plan import CachePlan, MemoryUse
from octavo.core.config import EngineConfig, SchedulerConfig
from octavo.core.info import EngineInfo
from octavo.core.model_spec import ModelSpec
from octavo.core.plan import RowResult, StepPlan, StepResult, StepTimes
from octavo.engine.core import Engine
from octavo.engine.loop import EngineLoop
from octavo.kv.manager import BlockManager
from octavo.scheduler.scheduler import Scheduler
from octavo.transport.base import EngineEnd, FrontEnd
from octavo.transport.inproc import make_pair

VOCAB_SIZE = 380
MAX_MODEL_LEN = 2048
NUM_BLOCKS = 2048


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """How the engine behaves."""

    step_s: float = 0.0
    max_num_seqs: int = 256
    cannot_start: tuple[str, str] | None = None
    """Class and message of the error with which building it fails."""
    fail_at_step: int | None = None
    """The executor has a bug that shows in the step of this number."""
    dies_while_starting: bool = False


def echo_of(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What a completion of ``prompt`` consists of."""
    return [prompt[k % len(prompt)] for k in range(num_tokens)]


class EchoExecutor:
    """Takes ``step_s`` for each step."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.plans: list[StepPlan] = []
        self._behaviour = behaviour
        self._prompts: dict[str, tuple[int, ...]] = {}
        self._plan: StepPlan | None = None

    def submit(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        self._plan = plan
        for name in plan.released:
            self._prompts.pop(name, None)
        for new in plan.admitted:
            self._prompts[new.request_id] = new.token_ids[: new.num_prompt_tokens]

    def collect(self) -> StepResult:
        plan, behaviour = self._plan, self._behaviour
        assert plan is not None
        if plan.step_id == behaviour.fail_at_step:
            raise ZeroDivisionError("a bug on purpose")
        if behaviour.step_s:
            time.sleep(behaviour.step_s)
        rows = []
        for row in plan.rows:
            prompt = self._prompts[row.request_id]
            k = row.start + row.num_new_tokens - len(prompt)
            tokens = (prompt[k % len(prompt)],) if row.wants_sample else ()
            rows.append(RowResult(row.request_id, tokens))
        times = StepTimes(prepare_s=0.001, forward_s=0.01, sample_s=0.002)
        return StepResult(step_id=plan.step_id, rows=tuple(rows), times=times)


def make_engine(behaviour: Behaviour) -> Engine:
    if behaviour.cannot_start is not None:
        kind, text = behaviour.cannot_start
        raise getattr(errors, kind, RuntimeError)(text)
    blocks = BlockManager(num_blocks=NUM_BLOCKS, block_size=16, enable_prefix_caching=True)
    config = SchedulerConfig(max_num_seqs=behaviour.max_num_seqs)
    scheduler = Scheduler(config, blocks, max_model_len=MAX_MODEL_LEN, clock=time.monotonic)
    executor = EchoExecutor(behaviour)
    return Engine(scheduler, executor, clock=time.monotonic, check_invariants=True)


def make_info() -> EngineInfo:
    spec = ModelSpec(
        architecture="echo",
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        max_position=MAX_MODEL_LEN,
    )
    plan = CachePlan(
        num_blocks=NUM_BLOCKS,
        block_size=16,
        bytes_per_block=1024,
        max_model_len=MAX_MODEL_LEN,
        utilization=0.5,
        memory=MemoryUse(total_bytes=1, weight_bytes=0, activation_bytes=0),
    )
    return EngineInfo(
        model="echo",
        spec=spec,
        cache_plan=plan,
        max_model_len=MAX_MODEL_LEN,
        dtype="float32",
        kv_dtype="float32",
        device="cpu",
        attention_backend="reference",
        num_threads=1,
        max_num_batched_tokens=2048,
        max_num_seqs=256,
        startup_s={"weights": 0.5},
    )


def serve_over(link: EngineEnd, behaviour: Behaviour) -> None:
    """The engine's side of a link, until it is told to leave."""
    try:
        EngineLoop(make_engine(behaviour), link, make_info(), clock=time.monotonic).run()
    finally:
        link.close()


@contextmanager
def engine_thread(behaviour: Behaviour) -> Iterator[FrontEnd]:
    """The front end of an engine in a thread, which must have ended when the block is left."""
    front, end = make_pair()
    thread = threading.Thread(target=serve_over, args=(end, behaviour), name="echo-engine")
    thread.start()
    try:
        yield front
    finally:
        front.close()
        thread.join(10)
        assert not thread.is_alive()


def child_command(address: str, behaviour: Behaviour) -> list[str]:
    """Runs this file as the engine's process."""
    return [sys.executable, str(Path(__file__)), address, msgspec.json.encode(behaviour).decode()]


CONFIG_LINE = msgspec.json.encode(EngineConfig()).decode()


def main() -> None:
    """The real entry point of the engine's process, with the model left out."""
    from octavo import assemble
    from octavo.cli import engine_process

    behaviour = msgspec.json.decode(sys.argv[2], type=Behaviour)

    def build(
        config: EngineConfig,
        on_progress: Callable[[str, float], None],
        *,
        expects_grammars: bool,
    ) -> tuple[Engine, Any]:
        assert config == EngineConfig()
        if behaviour.dies_while_starting:
            sys.exit(3)
        on_progress("weights", 0.5)
        return make_engine(behaviour), make_info()

    assemble.build_engine = build
    engine_process.main()


if __name__ == "__main__":
    main()
