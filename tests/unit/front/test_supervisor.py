"""The supervisor over processes that are played; real ones are in tests/server."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import pytest
from support.aio import aio, eventually
from support.echo_engine import make_info
from support.link_messages import make_submit

from octavo.core.errors import EngineDead
from octavo.core.plan import RequestDelta
from octavo.front import supervisor
from octavo.front.supervisor import RestartLimits, Supervisor
from octavo.metrics.stats import CacheStats, StepStats
from octavo.transport.messages import (
    Abort,
    Failed,
    FromEngine,
    Lost,
    Progress,
    Ready,
    StepDone,
    ToEngine,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_DELAY_S", 0.01)


@dataclass
class Engine:
    """A process and its link in one."""

    pid: int
    outbox: asyncio.Queue[FromEngine | Exception] = field(default_factory=asyncio.Queue)
    inbox: list[ToEngine] = field(default_factory=list)
    killed: str | None = None
    num_stops: int = 0
    is_closed: bool = False

    def kill(self, because: str) -> None:
        self.killed = because
        self.dies(f"was killed: {because}")

    def stop(self) -> None:
        self.num_stops += 1

    async def send(self, message: ToEngine) -> None:
        assert not self.is_closed
        self.inbox.append(message)

    async def receive(self) -> FromEngine:
        assert not self.is_closed
        message = await self.outbox.get()
        if isinstance(message, Exception):
            raise message
        return message

    def close(self) -> None:
        self.is_closed = True

    def says(self, *messages: FromEngine) -> None:
        for message in messages:
            self.outbox.put_nowait(message)

    def dies(self, how: str = "was killed by SIGKILL") -> None:
        self.outbox.put_nowait(EngineDead(f"the engine process (pid {self.pid}) {how}"))


class Scene:
    """A supervisor, and all engines that it has started."""

    def __init__(self, *, max_restarts: int = 3, hang_timeout_s: float = 0.0) -> None:
        self.engines: list[Engine] = []
        self.cannot_launch = 0
        self.num_wanted = 0
        limits = RestartLimits(max_restarts=max_restarts, hang_timeout_s=hang_timeout_s)
        self.supervisor = Supervisor(self._launch, limits)

    def _launch(self) -> tuple[Engine, Engine]:
        if self.cannot_launch:
            self.cannot_launch -= 1
            raise EngineDead("cannot start the engine process: out of memory")
        engine = Engine(100 + len(self.engines))
        self.engines.append(engine)
        return engine, engine

    async def get(self) -> FromEngine | Lost:
        return await asyncio.wait_for(self.supervisor.receive(), 5)

    async def is_ready(self) -> Engine:
        """The next engine is started, and says that it is ready."""
        task = asyncio.ensure_future(self.get())
        self.num_wanted += 1
        await eventually(lambda: len(self.engines) == self.num_wanted)
        self.engines[-1].says(Ready(make_info()))
        assert isinstance(await task, Ready)
        return self.engines[-1]


def step(*deltas: RequestDelta) -> StepDone:
    cache = CacheStats(
        num_total_blocks=8, num_free_blocks=8, num_cached_blocks=0, num_used_blocks=0
    )
    return StepDone(deltas, StepStats(step_id=0, num_running=0, num_waiting=0, cache=cache))


def token(name: str, *, is_last: bool = False) -> StepDone:
    reason = "length" if is_last else None
    return step(RequestDelta(request_id=name, new_token_ids=(5,), finish_reason=reason))


@aio
async def test_messages_pass_through() -> None:
    scene = Scene()
    engine = scene.engines[0]
    engine.says(Progress("weights", 0.5), Ready(make_info()), token("a"))
    assert await scene.get() == Progress("weights", 0.5)
    assert await scene.get() == Ready(make_info())
    assert await scene.get() == token("a")
    await scene.supervisor.send(Abort(("a",)))
    assert engine.inbox == [Abort(("a",))]
    assert scene.supervisor.pid == 100
    scene.supervisor.close()
    assert engine.is_closed and engine.num_stops == 1


@pytest.mark.parametrize("how", ["dies", "says so"])
@aio
async def test_a_first_start_that_fails_is_not_repeated(how: str) -> None:
    scene = Scene()
    if how == "dies":
        scene.engines[0].dies()
        with pytest.raises(EngineDead, match=r"pid 100.*SIGKILL"):
            await scene.get()
    else:
        scene.engines[0].says(Failed("needs 3 GiB", "CapacityError"))
        assert await scene.get() == Failed("needs 3 GiB", "CapacityError")
    assert len(scene.engines) == 1


@aio
async def test_a_dead_engine_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene = Scene()
    first = await scene.is_ready()
    first.says(token("a"))
    first.dies()
    assert isinstance(await scene.get(), StepDone)
    lost = await scene.get()
    assert isinstance(lost, Lost)
    assert "SIGKILL" in lost.reason and lost.ready_in_s < 1
    await scene.supervisor.send(make_submit())  # nobody is there to get it
    second = await scene.is_ready()
    assert first.is_closed and first.num_stops
    assert not first.inbox and not second.inbox
    await scene.supervisor.send(make_submit())
    assert second.inbox == [make_submit()]
    assert scene.supervisor.pid == 101
    assert "pid 100) was killed by SIGKILL; it is started again" in caplog.text
    assert "the engine is back" in caplog.text and "pid 101" in caplog.text


@pytest.mark.parametrize("how", ["says so", "talks nonsense"])
@aio
async def test_an_engine_that_cannot_go_on_is_replaced(how: str) -> None:
    scene = Scene()
    first = await scene.is_ready()
    if how == "says so":
        first.says(Failed("ZeroDivisionError: a bug", "EngineDead"))
    else:
        first.outbox.put_nowait(ValueError("not a message"))
    lost = await scene.get()
    assert isinstance(lost, Lost)
    assert ("ZeroDivisionError" if how == "says so" else "not a message") in lost.reason
    await scene.is_ready()
    assert first.num_stops == 1


@aio
async def test_engines_that_die_at_once_are_given_up(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(max_restarts=3)
    await scene.is_ready()
    for _ in range(3):
        await scene.supervisor.send(make_submit())
        scene.engines[-1].dies()
        assert isinstance(await scene.get(), Lost)
        await scene.is_ready()
    await scene.supervisor.send(make_submit())
    scene.engines[-1].dies()
    with pytest.raises(EngineDead, match=r"pid 103.*not started again.*max_engine_restarts is 3"):
        await scene.get()
    assert len(scene.engines) == 4
    assert [record.levelname for record in caplog.records].count("CRITICAL") == 1


@aio
async def test_those_that_die_while_they_start_count_too() -> None:
    scene = Scene(max_restarts=3)
    await scene.is_ready()
    scene.engines[-1].dies()
    assert isinstance(await scene.get(), Lost)
    task = asyncio.ensure_future(scene.get())
    await eventually(lambda: len(scene.engines) == 2)
    scene.engines[-1].says(Failed("out of memory", "CapacityError"))
    assert isinstance(await task, Lost)
    scene.cannot_launch = 1
    lost = await scene.get()
    assert isinstance(lost, Lost) and "cannot start" in lost.reason
    task = asyncio.ensure_future(scene.get())
    await eventually(lambda: len(scene.engines) == 3)
    scene.engines[-1].dies()
    with pytest.raises(EngineDead, match="not started again"):
        await task
    scene.supervisor.close()


@pytest.mark.parametrize("is_asked", [True, False])
@aio
async def test_an_engine_that_does_what_it_is_asked_may_die_any_number_of_times(
    is_asked: bool,
) -> None:
    scene = Scene(max_restarts=1)
    await scene.is_ready()
    for _ in range(10):
        if is_asked:
            await scene.supervisor.send(make_submit())
            scene.engines[-1].says(token("a"))
            assert isinstance(await scene.get(), StepDone)
        scene.engines[-1].dies()
        lost = await scene.get()
        assert isinstance(lost, Lost)
        await scene.is_ready()
    assert len(scene.engines) == 11


@aio
async def test_the_wait_before_a_start_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_DELAY_S", 0.1)
    monkeypatch.setattr(supervisor, "_LONGEST_DELAY_S", 0.3)
    scene = Scene(max_restarts=9)
    await scene.is_ready()
    estimates = []
    for _ in range(6):
        await scene.supervisor.send(make_submit())
        scene.engines[-1].dies()
        lost = await scene.get()
        assert isinstance(lost, Lost)
        estimates.append(lost.ready_in_s)
        await scene.is_ready()
    assert [round(estimate, 1) for estimate in estimates] == [
        *(0.0, 0.0, 0.0),
        *(0.1, 0.2, 0.3),
    ]


@aio
async def test_no_restart_at_all() -> None:
    scene = Scene(max_restarts=0)
    first = await scene.is_ready()
    first.says(token("a"))
    first.dies()
    await scene.get()
    with pytest.raises(EngineDead, match="SIGKILL"):
        await scene.get()


@aio
async def test_an_engine_that_hangs_is_killed() -> None:
    scene = Scene(hang_timeout_s=0.1)
    first = await scene.is_ready()
    await asyncio.sleep(0.3)
    assert first.killed is None  # it has nothing to do
    await scene.supervisor.send(make_submit("a"))  # two completions
    lost = await scene.get()
    assert isinstance(lost, Lost)
    assert "no sign of life" in lost.reason
    second = await scene.is_ready()
    await asyncio.sleep(0.3)
    assert second.killed is None
    await scene.supervisor.send(make_submit("b"))
    assert isinstance(await scene.get(), Lost)


@aio
async def test_an_engine_that_gives_signs_of_life_does_not_hang() -> None:
    scene = Scene(hang_timeout_s=0.2)
    engine = await scene.is_ready()
    await scene.supervisor.send(make_submit("a"))
    for _ in range(8):
        await asyncio.sleep(0.05)
        engine.says(token("a"))
        await scene.get()
    engine.says(token("a", is_last=True), token("a#1", is_last=True))
    await scene.get()
    await scene.get()
    await asyncio.sleep(0.4)
    assert engine.killed is None
    scene.supervisor.close()


@aio
async def test_closing_while_an_engine_is_being_replaced() -> None:
    scene = Scene()
    await scene.is_ready()
    scene.engines[-1].dies()
    await scene.get()
    task = asyncio.ensure_future(scene.get())
    await eventually(lambda: len(scene.engines) == 2)
    task.cancel()
    await asyncio.wait((task,))
    scene.supervisor.close()
    assert all(engine.is_closed and engine.num_stops for engine in scene.engines)
