"""Prompts get what running streams leave of their target, and streams wait no longer than that."""

from __future__ import annotations

import itertools
import random

import pytest
from support.fake_executor import FakeExecutor

from octavo.core.config import SchedulerConfig
from octavo.core.errors import ConfigError
from octavo.core.params import SamplingParams
from octavo.core.plan import ScheduledRequest
from octavo.core.request import Request
from octavo.kv.manager import BlockManager
from octavo.scheduler.pace import Pace, StepTimes, Work, split_work
from octavo.scheduler.scheduler import Scheduler

# A machine: seconds a step, a row, a token, and a pair of tokens of which one attends to the other.
STEP, ROW, TOKEN, PAIR = 0.008, 2e-4, 1e-3, 1e-7


def seconds(work: Work) -> float:
    return STEP + ROW * work.rows + TOKEN * work.tokens + PAIR * work.pairs


def row(start: int, num_tokens: int, name: str = "a") -> ScheduledRequest:
    return ScheduledRequest(
        request_id=name,
        start=start,
        num_new_tokens=num_tokens,
        new_block_ids=(),
        wants_sample=num_tokens == 1,
    )


def taught(target_s: float, num_steps: int = 60) -> Pace:
    pace, rng = Pace(target_s), random.Random(3)
    for _ in range(num_steps):
        rows = [row(rng.randrange(1000), 1) for _ in range(rng.randrange(1, 20))]
        if rng.random() < 0.6:
            rows.append(row(rng.randrange(3000), rng.randrange(2, 400)))
        decodes, prompts = split_work(rows)
        whole = Work(*(a + b for a, b in zip(decodes, prompts, strict=True)))
        pace.observe(rows, seconds(whole))
    return pace


def test_the_terms_of_a_step_are_found() -> None:
    times, rng = StepTimes(), random.Random(1)
    for _ in range(200):
        work = Work()
        for _ in range(rng.randrange(1, 30)):
            work = work.plus(rng.randrange(2000), rng.choice((1, 1, 64, 200)))
        times.observe(work, seconds(work), has_prompts=work.tokens > work.rows)
    assert times.terms == pytest.approx([STEP, ROW, TOKEN, PAIR], rel=0.05)


def test_no_term_is_negative() -> None:
    """Were one, more work would seem to take less time."""
    times = StepTimes()
    for rows, taken in ((1, 0.03), (2, 0.02), (4, 0.01), (8, 0.005)):
        for _ in range(10):
            times.observe(Work(rows, rows, 0.0), taken, has_prompts=False)
    assert min(times.terms) >= 0


@pytest.mark.parametrize("start", [0, 500, 3000])
def test_a_chunk_takes_what_the_target_leaves(start: int) -> None:
    decodes = [row(300, 1) for _ in range(8)]
    allowance = taught(0.100).allowance(decodes)
    assert allowance is not None
    fitting = allowance.tokens(start, 10_000)
    work, _ = split_work(decodes)
    assert seconds(work.plus(start, fitting)) == pytest.approx(0.100, rel=0.08)
    assert allowance.tokens(start, 5) == 5


def test_what_is_planned_is_gone() -> None:
    allowance = taught(0.100).allowance([row(300, 1)])
    assert allowance is not None
    whole = allowance.tokens(0, 10_000)
    allowance.spend(0, whole // 2)
    assert allowance.tokens(0, 10_000) == pytest.approx(whole / 2, rel=0.1)
    assert not allowance.is_spent
    allowance.spend(0, allowance.tokens(0, 10_000))
    assert allowance.is_spent and allowance.tokens(0, 10_000) == 0


def test_prompts_go_on_however_slow_the_streams_are() -> None:
    """Less than nothing is left: 16 tokens a step all the same, else a prompt would never begin."""
    allowance = taught(0.001).allowance([row(300, 1)] * 8)
    assert allowance is not None
    assert allowance.tokens(0, 10_000) == 16
    allowance.spend(0, 10)
    assert allowance.tokens(0, 10_000) == 6 and not allowance.is_spent
    allowance.spend(0, 6)
    assert allowance.is_spent


def test_nobody_waits_nothing_is_limited() -> None:
    pace = taught(0.001)
    assert pace.allowance([]) is None
    assert pace.allowance([row(0, 200)]) is None


def test_at_first_a_little() -> None:
    allowance = Pace(0.04).allowance([row(0, 1)])
    assert allowance is not None and allowance.tokens(0, 10_000) == 64


def test_noise_makes_chunks_smaller() -> None:
    """Steps that often take longer than predicted leave less to prompts; calm ones give it back."""
    pace = taught(0.100)
    rows = [row(300, 1), row(0, 60)]
    decodes, prompts = split_work(rows)
    whole = seconds(Work(*(a + b for a, b in zip(decodes, prompts, strict=True))))

    def fitting() -> int:
        allowance = pace.allowance([row(300, 1)])
        assert allowance is not None
        return allowance.tokens(0, 10_000)

    calm = fitting()
    for number in range(100):
        pace.observe(rows, whole * (1.5 if number % 5 == 0 else 1.0))
    noisy = fitting()
    assert noisy < 0.85 * calm
    for _ in range(800):
        pace.observe(rows, whole)
    assert fitting() > 0.95 * calm


class Machine:
    """A scheduler on a device whose steps take the time that they would on the machine above."""

    def __init__(self, **limits: object) -> None:
        self.now = 0.0
        self.ids = itertools.count()
        config = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=64, **limits)  # type: ignore[arg-type]
        self.scheduler = Scheduler(
            config,
            BlockManager(4096, 16, enable_prefix_caching=True),
            max_model_len=9000,
            clock=lambda: self.now,
        )
        self.executor = FakeExecutor(4096, 16)

    def add(self, num_tokens: int, max_tokens: int) -> str:
        name = str(next(self.ids))
        self.scheduler.add(
            Request(
                request_id=name,
                prompt_token_ids=tuple(i % 40 + int(name) for i in range(num_tokens)),
                params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
                seed=0,
                arrival_s=self.now,
            )
        )
        return name

    def step(self, noise: float = 1.0) -> tuple[float, set[str]]:
        """Returns how long it took and who got a token."""
        began = self.now
        plan = self.scheduler.schedule()
        assert plan is not None
        self.executor.submit(plan)
        result = self.executor.collect()
        decodes, prompts = split_work(plan.rows)
        self.now += noise * seconds(Work(*(a + b for a, b in zip(decodes, prompts, strict=True))))
        deltas = self.scheduler.commit(plan, result)
        return self.now - began, {d.request_id for d in deltas if d.new_token_ids}


@pytest.mark.parametrize("target_ms", [40, 100])
def test_streams_keep_their_pace_while_long_prompts_come_in(target_ms: int) -> None:
    machine, rng = Machine(target_itl_ms=float(target_ms)), random.Random(5)
    streams = [machine.add(40, 2000) for _ in range(8)]
    gaps: list[float] = []
    for _ in range(10):
        machine.step()
    for _ in range(6):
        long = machine.add(3000, 1)
        began, firsts = machine.now, set()
        while long not in firsts:
            taken, firsts = machine.step(rng.uniform(0.95, 1.05))
            assert firsts >= set(streams), "a stream was passed over"
            gaps.append(1000 * taken)
        alone_s = 3000 * TOKEN + PAIR * 3000 * 1500
        share = (target_ms / 1000 - STEP - 8 * (ROW + TOKEN)) / (target_ms / 1000)
        assert machine.now - began < 1.35 * alone_s / share, "the prompt gets all the rest"
    gaps.sort()
    assert gaps[int(0.99 * len(gaps))] <= 1.1 * target_ms
    assert gaps[-1] <= 1.25 * target_ms


def test_without_a_target_they_do_not() -> None:
    machine = Machine()
    machine.add(40, 200)
    machine.step()
    machine.add(3000, 1)
    assert machine.step()[0] > 1.0


def test_alone_a_long_prompt_is_computed_at_full_size() -> None:
    machine = Machine(target_itl_ms=40.0)
    machine.add(4000, 1)
    assert machine.step()[0] > 1.0


@pytest.mark.parametrize("target", [0.0, -1.0, float("inf"), float("nan")])
def test_targets_that_are_none(target: float) -> None:
    with pytest.raises(ConfigError, match="target_itl_ms"):
        SchedulerConfig(target_itl_ms=target)
