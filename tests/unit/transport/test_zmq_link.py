from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.aio import aio
from support.link_messages import make_step, make_submit

from octavo.core.errors import ConfigError, EngineDead
from octavo.transport.messages import Abort, Failed, Progress, Shutdown
from octavo.transport.zmq_link import ZmqEngineEnd, ZmqFrontEnd


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where links make their directories."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[ZmqFrontEnd, ZmqEngineEnd]]:
    front = ZmqFrontEnd()
    engine = ZmqEngineEnd(front.address)
    try:
        yield front, engine
    finally:
        engine.close()
        front.close()


@aio
async def test_messages_survive_the_journey_in_order() -> None:
    async with joined() as (front, engine):
        there = [make_submit("a"), Abort(("a", "b#1")), make_submit("b"), Shutdown()]
        back = [
            Progress("weights", 0.5),
            make_step(0),
            make_step(1),
            Failed("why", "CapacityError"),
        ]
        for message in back:
            engine.send(message)
        assert [await front.receive() for _ in back] == back
        for message in there:
            await front.send(message)
        got = []
        while len(got) < len(there):
            got += engine.receive(5)
        assert got == there


@aio
async def test_nobody_else_may_enter_the_directory(directories: Path) -> None:
    async with joined():
        (directory,) = directories.iterdir()
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@aio
async def test_directory_is_gone_once_the_engine_has_spoken(directories: Path) -> None:
    async with joined() as (front, engine):
        engine.send(Progress("weights", 0.5))
        await front.receive()
        assert list(directories.iterdir()) == []
        # The connection outlives its socket file.
        await front.send(Shutdown())
        assert engine.receive(5) == [Shutdown()]


@aio
async def test_closing_leaves_no_file_and_no_descriptor(directories: Path) -> None:
    async def once() -> None:
        async with joined() as (front, engine):
            engine.send(Progress("weights", 0.5))
            await front.receive()

    await once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await once()
        ZmqFrontEnd().close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(directories.iterdir()) == []


@aio
async def test_closing_twice_is_allowed() -> None:
    async with joined() as (front, engine):
        engine.close()
        front.close()


@aio
async def test_engine_never_waits_for_a_slow_reader() -> None:
    async with joined() as (front, engine):
        began = time.monotonic()
        for i in range(5_000):
            engine.send(make_step(i))
        assert time.monotonic() - began < 5
        for i in range(5_000):
            message = await front.receive()
            assert message.stats.step_id == i  # type: ignore[union-attr]


@aio
async def test_receive_waits_as_long_as_it_is_told() -> None:
    async with joined() as (_, engine):
        assert engine.receive(0) == []
        began = time.monotonic()
        assert engine.receive(0.05) == []
        assert 0.05 <= time.monotonic() - began < 1


@aio
async def test_what_a_dead_engine_left_behind_is_delivered_first() -> None:
    front = ZmqFrontEnd()
    code = (
        "import os, sys, time\n"
        "from octavo.transport.messages import Progress\n"
        "from octavo.transport.zmq_link import ZmqEngineEnd\n"
        "end = ZmqEngineEnd(sys.argv[1])\n"
        "for i in range(100): end.send(Progress('weights', i / 100))\n"
        "time.sleep(0.3)\n"  # the sending is done by a thread of ZeroMQ's
        "os.kill(os.getpid(), 9)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, front.address])
    await asyncio.to_thread(child.wait)
    front.connection_lost("killed by signal 9")
    for i in range(100):
        assert await front.receive() == Progress("weights", i / 100)
    for _ in range(2):
        with pytest.raises(EngineDead, match="killed by signal 9"):
            await front.receive()
    await asyncio.wait_for(front.send(Shutdown()), 1)  # vanishes, and does not wait
    front.close()


@aio
async def test_loss_wakes_up_whoever_waits() -> None:
    async with joined() as (front, _):
        waiting = asyncio.create_task(front.receive())
        await asyncio.sleep(0.05)
        front.connection_lost("gone")
        front.connection_lost("gone again")
        with pytest.raises(EngineDead, match=r"gone$"):
            await waiting


@aio
async def test_cancelled_receive_loses_no_message() -> None:
    async with joined() as (front, engine):
        for i in range(20):
            waiting = asyncio.create_task(front.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            engine.send(Progress("weights", i / 20))
            assert await front.receive() == Progress("weights", i / 20)


@aio
async def test_sending_before_an_engine_is_there_does_not_wait() -> None:
    front = ZmqFrontEnd()
    await asyncio.wait_for(front.send(Shutdown()), 1)
    front.close()


def test_engine_does_not_wait_for_a_front_end_that_is_gone() -> None:
    async def leave_behind() -> ZmqEngineEnd:
        front = ZmqFrontEnd()
        engine = ZmqEngineEnd(front.address)
        engine.send(Progress("weights", 0.5))
        await front.receive()
        front.close()
        return engine

    engine = asyncio.run(leave_behind())
    began = time.monotonic()
    for i in range(1000):
        engine.send(make_step(i))
    engine.close()
    assert time.monotonic() - began < 3


def test_path_too_long_for_a_socket_is_refused(
    directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = directories / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(ConfigError, match="TMPDIR"):
        ZmqFrontEnd()
    assert list(deep.iterdir()) == []
