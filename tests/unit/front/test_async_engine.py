from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.aio import aio, eventually
from support.echo_engine import (
    CONFIG_LINE,
    MAX_MODEL_LEN,
    NUM_BLOCKS,
    Behaviour,
    child_command,
    echo_of,
    engine_thread,
    make_engine,
    make_info,
)

from octavo.core.errors import (
    CapacityError,
    ContextTooLong,
    EngineDead,
    EngineDraining,
    InvalidParameter,
    RequestTimeout,
)
from octavo.core.params import SamplingParams
from octavo.front.async_engine import AsyncEngine
from octavo.front.outputs import CompletionDelta, RequestSummary
from octavo.front.process import EngineProcess
from octavo.metrics.registry import EngineMetrics
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.transport.base import FrontEnd
from octavo.transport.messages import FromEngine, Ready, StepDone, ToEngine
from octavo.transport.zmq_link import ZmqFrontEnd

LinkKind = Literal["thread", "process"]
TEXT = "the quick brown fox jumps over the lazy dog"
QUICK = Behaviour()
SLOW = Behaviour(step_s=0.01)

both_links = pytest.mark.parametrize("kind", ["thread", "process"])


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where links make their directories."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@dataclass
class Running:
    engine: AsyncEngine
    process: EngineProcess | None

    def value(self, name: str, **labels: str) -> float:
        """A sample of the metrics page."""
        text = self.engine.metrics.exposition().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"octavo:{name}" and labels.items() <= sample.labels.items():
                    return sample.value
        raise KeyError(name)

    async def is_idle(self) -> None:
        """Returns once the engine runs nothing and holds no block."""
        await eventually(
            lambda: (
                self.value("num_requests_running") == 0
                and self.value("num_requests_waiting") == 0
                and self.value("kv_cache_blocks", state="used") == 0
            )
        )
        assert self.engine.num_open == 0


@asynccontextmanager
async def link_to(
    behaviour: Behaviour, kind: LinkKind
) -> AsyncIterator[tuple[FrontEnd, EngineProcess | None]]:
    if kind == "thread":
        with engine_thread(behaviour) as link:
            yield link, None
        return
    zmq_link = ZmqFrontEnd()
    process = EngineProcess(child_command(zmq_link.address, behaviour), CONFIG_LINE)
    process.watch(zmq_link.connection_lost)
    try:
        yield zmq_link, process
    finally:
        process.stop()
        zmq_link.close()


def front_of(link: FrontEnd, tokenizer: Tokenizer) -> AsyncEngine:
    return AsyncEngine(
        link,
        tokenizer,
        eos_token_ids=frozenset({2}),
        metrics=EngineMetrics("echo"),
        clock=time.monotonic,
    )


@asynccontextmanager
async def running(
    tokenizer: Tokenizer, behaviour: Behaviour = QUICK, kind: LinkKind = "thread"
) -> AsyncIterator[Running]:
    async with link_to(behaviour, kind) as (link, process):
        engine = front_of(link, tokenizer)
        await engine.start()
        try:
            yield Running(engine, process)
        finally:
            await engine.shutdown()


def params(max_tokens: int = 20, **options: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **options)  # type: ignore[arg-type]


async def collect(pieces: AsyncIterator[list[CompletionDelta]]) -> list[CompletionDelta]:
    return [delta async for deltas in pieces for delta in deltas]


def tokens_of(deltas: list[CompletionDelta], index: int = 0) -> list[int]:
    return [token for delta in deltas if delta.index == index for token in delta.token_ids]


def text_of(deltas: list[CompletionDelta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


# ---------------------------------------------------------------------- what clients get


@both_links
@aio
async def test_stream_and_whole_output_are_the_same(tokenizer: Tokenizer, kind: LinkKind) -> None:
    prompt = tokenizer.encode(f"{TEXT} 😀 世界 é")
    async with running(tokenizer, kind=kind) as run:
        assert run.engine.info == make_info()
        deltas = await collect(run.engine.generate(prompt, params(60, n=3)))
        whole = await run.engine.complete(prompt, params(60, n=3))
        await run.is_idle()
    assert whole.prompt_token_ids == tuple(prompt)
    for index, completion in enumerate(whole.outputs):
        assert completion.token_ids == tokens_of(deltas, index) == echo_of(prompt, 60)
        assert completion.text == text_of(deltas, index) != ""
        assert completion.finish_reason == "length"
    assert [delta.finish_reason for delta in deltas].count("length") == 3
    assert whole.num_cached_tokens == 16 * ((len(prompt) - 1) // 16)
    assert whole.metrics is not None
    assert 0 <= whole.metrics.queue_s <= whole.metrics.first_token_s <= whole.metrics.total_s


@both_links
@aio
async def test_two_hundred_clients_at_once(tokenizer: Tokenizer, kind: LinkKind) -> None:
    async with running(tokenizer, Behaviour(max_num_seqs=64), kind) as run:

        async def client(number: int) -> None:
            prompt = tokenizer.encode(f"{TEXT} {number}")
            length = 5 + number % 30
            deltas = await collect(run.engine.generate(prompt, params(length)))
            assert tokens_of(deltas) == echo_of(prompt, length)
            assert deltas[-1].finish_reason == "length"

        await asyncio.gather(*map(client, range(200)))
        await run.is_idle()
        assert run.value("request_success_total", finished_reason="length") == 200
        assert run.value("generation_tokens_total") == sum(5 + i % 30 for i in range(200))


@aio
async def test_slow_client_gets_what_piled_up_in_one_piece(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode(TEXT)
    async with running(tokenizer) as run:
        pieces = run.engine.generate(prompt, params(500))
        first = await anext(pieces)
        await eventually(lambda: run.value("request_success_total", finished_reason="length") == 1)
        rest = [piece async for piece in pieces]
    assert len(rest) == 1
    assert tokens_of(first + rest[0]) == echo_of(prompt, 500)


@aio
async def test_stop_string_ends_the_request_at_the_engine_too(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode(TEXT)
    async with running(tokenizer, SLOW) as run:
        output = await run.engine.complete(prompt, params(1000, stop=("fox",)))
        await run.is_idle()
        assert run.value("request_success_total", finished_reason="stop") == 1
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].stop_reason == "fox"
    assert output.outputs[0].text == "the quick brown "


@aio
async def test_requests_that_end_early_do_not_disturb_others(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode(TEXT)
    async with running(tokenizer, SLOW) as run:
        long = asyncio.create_task(run.engine.complete(prompt, params(60)))
        for _ in range(5):
            pieces = run.engine.generate(prompt, params(60))
            await anext(pieces)
            await pieces.aclose()  # type: ignore[attr-defined]
        assert (await long).outputs[0].token_ids == echo_of(prompt, 60)
        await run.is_idle()


class Backlog:
    """A front end whose engine has run ahead: a thousand messages wait to be read."""

    def __init__(self) -> None:
        stats = make_engine(QUICK).stats()
        self._messages: list[FromEngine] = [Ready(make_info())]
        self._messages += [StepDone((), stats)] * 1000

    async def send(self, message: ToEngine) -> None:
        pass

    async def receive(self) -> FromEngine:
        if not self._messages:
            raise EngineDead("the backlog is read")
        return self._messages.pop(0)

    def close(self) -> None:
        pass


@aio
async def test_clients_have_their_turn_while_messages_pile_up(tokenizer: Tokenizer) -> None:
    engine = front_of(Backlog(), tokenizer)
    await engine.start()
    turns = 0
    while engine.is_alive:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 1000


# ---------------------------------------------------------------------- ending early


@both_links
@aio
async def test_cancelled_clients_are_aborted(tokenizer: Tokenizer, kind: LinkKind) -> None:
    prompt = tokenizer.encode(TEXT)
    async with running(tokenizer, SLOW, kind) as run:
        streams = [
            asyncio.create_task(collect(run.engine.generate(prompt, params(1000, n=2))))
            for _ in range(4)
        ]
        whole = asyncio.create_task(run.engine.complete(prompt, params(1000)))
        await eventually(lambda: run.value("num_requests_running") == 9)
        for task in (*streams, whole):
            task.cancel()
        await asyncio.wait((*streams, whole))
        await run.is_idle()
        assert run.value("request_success_total", finished_reason="abort") == 9


@aio
async def test_closed_iterator_is_aborted(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, SLOW) as run:
        pieces = run.engine.generate(tokenizer.encode(TEXT), params(1000))
        await anext(pieces)
        await pieces.aclose()  # type: ignore[attr-defined]
        assert run.engine.num_open == 0
        await run.is_idle()


@aio
async def test_request_that_another_aborts_ends_with_what_there_is(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode(TEXT)
    async with running(tokenizer, SLOW) as run:
        stream = asyncio.create_task(
            collect(run.engine.generate(prompt, params(1000, n=2), request_id="s"))
        )
        whole = asyncio.create_task(run.engine.complete(prompt, params(1000), request_id="w"))
        await eventually(lambda: run.value("generation_tokens_total") > 30)
        for name in ("s", "w", "s", "nobody"):
            await run.engine.abort(name)
        deltas, output = await stream, await whole
        await run.is_idle()
        assert run.value("request_success_total", finished_reason="abort") == 3
    for index in range(2):
        ends = [d.finish_reason for d in deltas if d.index == index and d.finish_reason]
        assert ends == ["abort"]
        tokens = tokens_of(deltas, index)
        assert tokens and tokens == echo_of(prompt, len(tokens))
    assert output.outputs[0].finish_reason == "abort"
    assert output.outputs[0].text == text_of(deltas, 0)[: len(output.outputs[0].text)] != ""


@aio
async def test_abort_after_the_end_changes_nothing(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as run:
        pieces = run.engine.generate(tokenizer.encode(TEXT), params(5), request_id="a")
        deltas = await anext(pieces)
        while deltas[-1].finish_reason is None:
            deltas = await anext(pieces)
        await run.engine.abort("a")
        assert [piece async for piece in pieces] == []
        assert run.value("request_success_total", finished_reason="abort") == 0


@aio
async def test_id_can_be_used_again_but_never_gets_news_of_the_request_before(
    tokenizer: Tokenizer,
) -> None:
    old, new = tokenizer.encode(TEXT), tokenizer.encode("0123456789")
    async with running(tokenizer, Behaviour(step_s=0.05)) as run:
        pieces = run.engine.generate(old, params(1000), request_id="a")
        await anext(pieces)
        with pytest.raises(InvalidParameter, match="'a' is in use"):
            await run.engine.complete(new, params(4), request_id="a")
        await pieces.aclose()  # type: ignore[attr-defined]
        with pytest.raises(InvalidParameter, match="'a' is in use"):  # a step of it still runs
            await run.engine.complete(new, params(4), request_id="a")
        await run.is_idle()
        output = await run.engine.complete(new, params(4), request_id="a")
    assert output.outputs[0].token_ids == echo_of(new, 4)


# ---------------------------------------------------------------------- refusals


@both_links
@aio
async def test_refusal_by_the_engine_keeps_its_class(tokenizer: Tokenizer, kind: LinkKind) -> None:
    too_long = [1] * MAX_MODEL_LEN
    async with running(tokenizer, kind=kind) as run:
        with pytest.raises(ContextTooLong, match=str(MAX_MODEL_LEN)) as caught:
            await anext(run.engine.generate(too_long, params(5, n=3)))
        assert caught.value.param == "prompt"
        with pytest.raises(ContextTooLong):
            await run.engine.complete(too_long, params(5))
        with pytest.raises(InvalidParameter, match="empty"):
            await run.engine.complete([], params(5))
        output = await run.engine.complete(too_long[:-1], params(5))
        await run.is_idle()
    assert output.outputs[0].token_ids == [1]


@aio
async def test_refusal_at_the_front_leaves_nothing_behind(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as run:
        with pytest.raises(InvalidParameter, match="token id 380"):
            await run.engine.complete([380], params(5))
        with pytest.raises(InvalidParameter, match="stop"):
            await anext(run.engine.generate([1], params(5, stop=("\ud800",)), request_id="a"))
        assert run.engine.num_open == 0
        assert await run.engine.drain(1) == 0


class BrokenLink:
    """A front end whose engine is ready, but cannot be sent to."""

    def __init__(self, link: FrontEnd) -> None:
        self._link = link
        self.is_broken = False

    async def send(self, message: object) -> None:
        if self.is_broken:
            raise OSError("broken on purpose")
        await self._link.send(message)  # type: ignore[arg-type]

    async def receive(self) -> object:
        return await self._link.receive()

    def close(self) -> None:
        pass


@aio
async def test_request_that_cannot_be_sent_leaves_nothing_behind(tokenizer: Tokenizer) -> None:
    with engine_thread(Behaviour()) as link:
        broken = BrokenLink(link)
        engine = front_of(broken, tokenizer)  # type: ignore[arg-type]
        await engine.start()
        broken.is_broken = True
        with pytest.raises(OSError, match="on purpose"):
            await engine.complete([1], params(5), request_id="a")
        assert engine.num_open == 0
        broken.is_broken = False
        assert (await engine.complete([1], params(5))).outputs[0].token_ids == [1] * 5
        await engine.shutdown()


# ---------------------------------------------------------------------- the end of an engine


@aio
async def test_drain_refuses_new_requests_and_waits_for_the_others(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode(TEXT)
    async with running(tokenizer, SLOW) as run:
        engine = run.engine
        tasks = [asyncio.create_task(engine.complete(prompt, params(30))) for _ in range(3)]
        await eventually(lambda: engine.num_open == 3)
        assert await engine.drain(0.02) == 3
        assert engine.is_draining
        with pytest.raises(EngineDraining):
            await engine.complete(prompt, params(5))
        began = time.monotonic()
        assert await engine.drain(20) == 0
        assert time.monotonic() - began < 10  # as soon as the last of them has ended
        for task in tasks:
            assert (await task).outputs[0].token_ids == echo_of(prompt, 30)


@both_links
@aio
async def test_shutdown_ends_what_runs(tokenizer: Tokenizer, kind: LinkKind) -> None:
    async with running(tokenizer, SLOW, kind) as run:
        engine = run.engine
        task = asyncio.create_task(collect(engine.generate([1, 2], params(1000))))
        await eventually(lambda: run.value("num_requests_running") == 1)
        await engine.shutdown()
        with pytest.raises(EngineDraining, match="shutting down"):
            await task
        await engine.shutdown()
        assert not engine.is_alive
        with pytest.raises(EngineDraining):
            await engine.complete([1], params(5))
        if run.process is not None:
            pid = run.process.pid
            await eventually(lambda: not psutil.pid_exists(pid))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (("CapacityError", "needs 3 GiB, has 2"), CapacityError),
        (("RuntimeError", "needs 3 GiB, has 2"), EngineDead),
    ],
)
@aio
async def test_engine_that_cannot_start_says_why(
    tokenizer: Tokenizer, error: tuple[str, str], expected: type[Exception]
) -> None:
    stages: list[tuple[str, float]] = []
    async with link_to(Behaviour(cannot_start=error), "process") as (link, _):
        engine = front_of(link, tokenizer)
        with pytest.raises(expected, match="needs 3 GiB, has 2"):
            await engine.start(lambda *stage: stages.append(stage))
        assert stages == [("weights", 0.5)]
        assert not engine.is_alive
        assert isinstance(engine.error, expected)
        await engine.shutdown()


@aio
async def test_engine_that_dies_while_starting(tokenizer: Tokenizer) -> None:
    async with link_to(Behaviour(dies_while_starting=True), "process") as (link, _):
        engine = front_of(link, tokenizer)
        with pytest.raises(EngineDead, match="ended with status 3"):
            await engine.start()
        assert isinstance(engine.error, EngineDead)
        with pytest.raises(EngineDead, match="ended with status 3"):
            await engine.complete([1], params(5))


@both_links
@aio
async def test_bug_in_a_step_ends_every_request(tokenizer: Tokenizer, kind: LinkKind) -> None:
    prompt = tokenizer.encode(TEXT)
    async with running(tokenizer, Behaviour(fail_at_step=5), kind) as run:
        engine = run.engine
        tasks = [asyncio.create_task(collect(engine.generate(prompt, params(50))))]
        tasks += [asyncio.create_task(engine.complete(prompt, params(50)))]
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, EngineDead)
            assert "ZeroDivisionError: a bug on purpose" in str(result)
        assert not engine.is_alive
        assert run.value("num_requests_running") == 0
        assert engine.num_open == 0


@aio
async def test_pieces_that_came_before_the_end_are_delivered(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode(TEXT)
    async with running(tokenizer, Behaviour(fail_at_step=5)) as run:
        got: list[CompletionDelta] = []
        with pytest.raises(EngineDead):
            async for deltas in run.engine.generate(prompt, params(50)):
                got += deltas
    assert tokens_of(got) == echo_of(prompt, 5)


@aio
async def test_killed_engine_ends_every_request_at_once(
    tokenizer: Tokenizer, directories: Path
) -> None:
    async with running(tokenizer, SLOW, "process") as run:
        engine, process = run.engine, run.process
        assert process is not None
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(collect(engine.generate([1, 2, 3], params(1000, n=2))))
            for _ in range(50)
        ]
        tasks += [asyncio.create_task(engine.complete([4, 5], params(1000))) for _ in range(50)]
        await eventually(lambda: run.value("num_requests_running") == 150)
        os.kill(process.pid, signal.SIGKILL)
        began = time.monotonic()
        # Meanwhile, requests come and clients go: nothing of that may wait for the dead.
        tasks[0].cancel()
        late = asyncio.create_task(engine.complete([1], params(5)))
        results = await asyncio.gather(*tasks, late, return_exceptions=True)
        assert time.monotonic() - began < 3
        assert isinstance(results[0], asyncio.CancelledError)
        for result in results[1:]:
            assert isinstance(result, EngineDead)
            assert "SIGKILL" in str(result)
        assert engine.num_open == 0
        assert not psutil.pid_exists(process.pid)
        assert list(directories.iterdir()) == []


@aio
async def test_errors_of_a_dead_engine_do_not_grow(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, Behaviour(fail_at_step=0)) as run:
        caught = []
        for _ in range(4):
            with pytest.raises(EngineDead) as info:
                await run.engine.complete([1], params(5))
            caught.append(info)
    assert len({id(info.value) for info in caught}) == 4
    depths = [len(info.traceback) for info in caught[1:]]
    assert len(set(depths)) == 1


@aio
async def test_bug_of_the_front_end_is_told_and_logged(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tokenizer) as run:

        def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug on purpose")

        monkeypatch.setattr(run.engine.metrics, "observe_step", broken)
        with pytest.raises(EngineDead, match="front end failed: ZeroDivisionError"):
            await run.engine.complete([1], params(5))
        assert "Traceback" in caplog.text


# ---------------------------------------------------------------------- deadlines


@both_links
@aio
async def test_deadline_ends_a_running_request(tokenizer: Tokenizer, kind: LinkKind) -> None:
    async with running(tokenizer, SLOW, kind) as run:
        engine, got = run.engine, []
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match=r"not done after 0\.\d s.* generated \d+ tokens"):
            async for deltas in engine.generate([1, 2], params(1000), timeout_s=0.3):
                got += deltas
        assert 0.25 < time.monotonic() - began < 2
        assert tokens_of(got) == echo_of([1, 2], len(tokens_of(got)))
        with pytest.raises(RequestTimeout):
            await engine.complete([1, 2], params(1000, n=3), timeout_s=0.2)
        await run.is_idle()
        assert run.value("request_timeouts_total") == 2


@aio
async def test_deadline_ends_a_request_in_the_queue(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, Behaviour(step_s=0.01, max_num_seqs=1)) as run:
        engine = run.engine
        first = asyncio.create_task(engine.complete([5, 6], params(60)))
        await eventually(lambda: run.value("num_requests_running") == 1)
        with pytest.raises(RequestTimeout, match="no token yet"):
            await engine.complete([7], params(5), timeout_s=0.1)
        assert (await first).outputs[0].token_ids == echo_of([5, 6], 60)
        await run.is_idle()


@aio
async def test_deadline_does_not_wait_for_a_client_that_does_not_read(
    tokenizer: Tokenizer,
) -> None:
    async with running(tokenizer, SLOW) as run:
        pieces = run.engine.generate([1, 2], params(1000), timeout_s=0.2)
        await anext(pieces)
        await eventually(lambda: run.value("kv_cache_blocks", state="used") > 0)
        await eventually(lambda: run.value("kv_cache_blocks", state="used") == 0)
        with pytest.raises(RequestTimeout):
            await collect(pieces)
        await run.is_idle()


@aio
async def test_requests_in_time_leave_no_deadline(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as run:
        output = await run.engine.complete([1, 2], params(5), timeout_s=60.0)
        assert output.outputs[0].finish_reason == "length"
        assert len(run.engine._requests._deadlines) == 0
        assert run.value("request_timeouts_total") == 0


@aio
async def test_the_line_is_known_at_any_moment(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, Behaviour(step_s=0.01, max_num_seqs=1)) as run:
        engine = run.engine
        tasks = [asyncio.create_task(engine.complete([5] * 9, params(200))) for _ in range(4)]
        await eventually(lambda: engine.num_waiting == 3)
        assert engine.waiting.num_tokens == 27
        tasks[2].cancel()
        await asyncio.wait(tasks[2:3])
        assert (engine.num_waiting, engine.waiting.num_tokens) == (2, 18)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert (engine.num_waiting, engine.waiting.num_tokens) == (0, 0)
        await run.is_idle()


# ---------------------------------------------------------------------- numbers


@aio
async def test_metrics_after_a_scripted_run(tokenizer: Tokenizer) -> None:
    prompt = list(range(10, 50))
    async with running(tokenizer) as run:
        # Known before any request.
        await eventually(lambda: run.value("kv_cache_blocks", state="free") == NUM_BLOCKS)
        for _ in range(2):
            await run.engine.complete(prompt, params(10))
        await collect(run.engine.generate(prompt, params(4, n=2)))
        await run.is_idle()
        assert run.value("generation_tokens_total") == 28
        assert run.value("request_success_total", finished_reason="length") == 4
        assert run.value("time_to_first_token_seconds_count") == 4
        assert run.value("inter_token_latency_seconds_count") == 24
        assert run.value("e2e_request_latency_seconds_count") == 4
        assert run.value("request_queue_time_seconds_count") == 4
        assert run.value("request_prompt_tokens_sum") == 160
        assert run.value("request_generation_tokens_sum") == 28
        assert run.value("prefix_cache_hits_total") > 0
        assert run.value("step_seconds_sum", part="forward") == pytest.approx(
            0.01 * run.value("step_seconds_count", part="forward")
        )
        free = run.value("kv_cache_blocks", state="free")
        cached = run.value("kv_cache_blocks", state="cached")
        assert cached > 0
        assert free + cached == NUM_BLOCKS


@aio
async def test_a_stream_costs_little(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode(TEXT)
    async with running(tokenizer, Behaviour(step_s=0.001)) as run:
        began = time.thread_time()
        await asyncio.gather(
            *(collect(run.engine.generate(prompt, params(50))) for _ in range(100))
        )
        used = time.thread_time() - began
    # 5000 deltas; some 25 µs each were measured, detokenizing and metrics included.
    assert used / 5000 < 250e-6


@aio
async def test_it_says_what_became_of_each_request(tokenizer: Tokenizer) -> None:
    ends: list[RequestSummary] = []
    async with running(tokenizer, Behaviour(step_s=0.002)) as run:
        engine = run.engine
        for _ in range(2):
            await engine.complete([5] * 40, params(6, n=2), request_id="r", on_end=ends.append)
        pieces = engine.generate([7] * 4, params(500), on_end=ends.append)
        await anext(pieces)
        await pieces.aclose()
        with pytest.raises(RequestTimeout):
            await engine.complete([8] * 4, params(500), timeout_s=0.02, on_end=ends.append)
        with pytest.raises(ContextTooLong):
            await engine.complete([8] * 5000, params(1), on_end=ends.append)
    whole, again, left, late, refused = ends
    assert (whole.request_id, whole.num_prompt_tokens, whole.num_generated_tokens) == ("r", 40, 12)
    assert (whole.num_cached_tokens, again.num_cached_tokens) == (0, 32)
    assert whole.finish_reasons == ("length", "length") and whole.error is None
    assert whole.queue_s is not None and whole.first_token_s is not None
    assert whole.last_token_s is not None
    assert 0 <= whole.queue_s < whole.first_token_s < whole.last_token_s
    assert whole.last_token_s <= whole.total_s <= whole.closed_s
    assert left.finish_reasons == ("abort",) and left.num_generated_tokens >= 1
    assert isinstance(late.error, RequestTimeout) and late.finish_reasons == ("abort",)
    assert isinstance(refused.error, ContextTooLong)
    assert (refused.finish_reasons, refused.queue_s, refused.first_token_s) == ((), None, None)


@aio
async def test_whatever_is_submitted_ends_once_in_the_counts(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, Behaviour(step_s=0.001)) as run:
        engine = run.engine
        await engine.complete([5] * 4, params(3, n=3))
        with pytest.raises(RequestTimeout):
            await engine.complete([6] * 4, params(900), timeout_s=0.02)
        doomed = asyncio.create_task(engine.complete([7] * 4, params(900, n=2)))
        await eventually(lambda: run.value("num_requests_running") == 2)
    with pytest.raises(EngineDraining):
        await doomed
    ends = {r: run.value("request_success_total", finished_reason=r) for r in ("length", "abort")}
    assert ends == {"length": 3, "abort": 1}
    assert run.value("request_success_total", finished_reason="error") == 2
    assert run.value("e2e_request_latency_seconds_count") == 6
    assert run.value("engine_up") == 0


@both_links
@aio
async def test_the_engine_is_asked_about_itself(tokenizer: Tokenizer, kind: LinkKind) -> None:
    async with running(tokenizer, Behaviour(step_s=0.002), kind) as run:
        engine = run.engine
        idle = await engine.inspect(10)
        assert (idle.num_running, idle.rows, idle.step_id) == (0, (), -1)
        request = asyncio.create_task(engine.complete([5] * 20, params(900), request_id="r"))
        await eventually(lambda: run.value("num_requests_running") == 1)
        found = await engine.inspect(10, range(50))
        (row,) = found.rows
        assert (row.id, row.state, row.num_prompt_tokens) == ("r", "running", 20)
        assert found.blocks is not None and found.blocks.owner_ids == ("r",)
        assert len(found.blocks.states) == 50
        if run.process is not None:
            assert found.process.pid == run.process.pid
        request.cancel()
        await run.is_idle()
    with pytest.raises(EngineDraining):
        await engine.inspect(10)
