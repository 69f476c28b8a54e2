from __future__ import annotations

import asyncio

import pytest
from support.aio import aio
from support.echo_engine import Behaviour, make_engine

from octavo.core.errors import EngineDead
from octavo.front.inspection import Inspections
from octavo.metrics.snapshot import EngineSnapshot
from octavo.transport.messages import Inspect, Inspected


def snapshot() -> EngineSnapshot:
    return make_engine(Behaviour()).snapshot(0, None)


class Sent:
    def __init__(self) -> None:
        self.messages: list[Inspect] = []

    async def send(self, message: Inspect) -> None:
        self.messages.append(message)


@aio
async def test_the_same_question_is_asked_once() -> None:
    sent, answer = Sent(), snapshot()
    inspections = Inspections(sent.send)
    askers = [asyncio.create_task(inspections.ask(5, 0, 0)) for _ in range(3)]
    other = asyncio.create_task(inspections.ask(6, 2, 3))
    await asyncio.sleep(0)
    assert [(m.max_requests, m.first_block, m.num_blocks) for m in sent.messages] == [
        (5, 0, 0),
        (6, 2, 3),
    ]
    inspections.answered(Inspected(sent.messages[0].number, answer))
    assert all(found is answer for found in await asyncio.gather(*askers))
    assert not other.done()
    again = asyncio.create_task(inspections.ask(5, 0, 0))
    await asyncio.sleep(0)
    assert len(sent.messages) == 3, "an answer is of its moment"
    inspections.answered(Inspected(sent.messages[1].number, answer))
    inspections.answered(Inspected(sent.messages[2].number, answer))
    assert await other is await again is answer


@aio
async def test_one_who_leaves_takes_nothing_from_the_others() -> None:
    sent, answer = Sent(), snapshot()
    inspections = Inspections(sent.send)
    first, second = (asyncio.create_task(inspections.ask(1, 0, 0)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    inspections.answered(Inspected(sent.messages[0].number, answer))
    assert await second is answer and first.cancelled()


@aio
async def test_nobody_waits_for_an_engine_that_is_gone() -> None:
    sent = Sent()
    inspections = Inspections(sent.send)
    askers = [asyncio.create_task(inspections.ask(1, 0, number)) for number in (0, 0, 1)]
    await asyncio.sleep(0)
    inspections.fail_all(EngineDead("gone"))
    for result in await asyncio.gather(*askers, return_exceptions=True):
        assert isinstance(result, EngineDead)
    inspections.answered(Inspected(sent.messages[0].number, snapshot()))  # too late: ignored
    inspections.fail_all(EngineDead("gone"))


@aio
async def test_answers_nobody_asked_for_are_ignored() -> None:
    Inspections(Sent().send).answered(Inspected(99, snapshot()))


def test_the_link_may_fail_while_asking() -> None:
    async def broken(_message: Inspect) -> None:
        raise EngineDead("no link")

    async def main() -> None:
        with pytest.raises(EngineDead, match="no link"):
            await Inspections(broken).ask(1, 0, 0)

    asyncio.run(main())
