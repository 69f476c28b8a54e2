from __future__ import annotations

import asyncio
import threading
import time

import pytest
from support.aio import aio

from octavo.core.errors import EngineDead
from octavo.transport.inproc import make_pair
from octavo.transport.messages import Abort, Progress, Shutdown, ToEngine


@aio
async def test_messages_arrive_in_order_both_ways() -> None:
    front, engine = make_pair()
    sent = [Abort((str(i),)) for i in range(50)]
    for message in sent:
        await front.send(message)
    assert engine.receive(0) == sent
    thread = threading.Thread(
        target=lambda: [engine.send(Progress("weights", i / 50)) for i in range(50)]
    )
    thread.start()
    got = [await front.receive() for _ in range(50)]
    thread.join()
    assert got == [Progress("weights", i / 50) for i in range(50)]


@aio
async def test_receive_waits_as_long_as_it_is_told() -> None:
    front, engine = make_pair()
    assert engine.receive(0) == []
    began = time.monotonic()
    assert engine.receive(0.05) == []
    assert time.monotonic() - began >= 0.05
    waiting: list[list[ToEngine]] = []
    thread = threading.Thread(target=lambda: waiting.append(engine.receive(None)))
    thread.start()
    await asyncio.sleep(0.05)
    assert not waiting
    await front.send(Shutdown())
    thread.join(5)
    assert waiting == [[Shutdown()]]


@aio
async def test_front_end_has_the_last_messages_before_the_end() -> None:
    front, engine = make_pair()
    engine.send(Progress("weights", 1.0))
    engine.close()
    assert await front.receive() == Progress("weights", 1.0)
    for _ in range(2):
        with pytest.raises(EngineDead, match="ended"):
            await front.receive()


@aio
async def test_closing_the_front_end_tells_the_engine_to_leave() -> None:
    front, engine = make_pair()
    front.close()
    assert engine.receive(1) == [Shutdown()]


def test_an_engine_that_outlives_the_loop_is_not_disturbed() -> None:
    async def main():  # type: ignore[no-untyped-def]
        return make_pair()

    _, engine = asyncio.run(main())
    engine.send(Progress("weights", 1.0))
    engine.close()
