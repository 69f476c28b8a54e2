from __future__ import annotations

import asyncio

from support.aio import aio

from octavo.front.deadlines import Deadlines


class Times:
    """Deadlines on a clock of their own, and which have been reached."""

    def __init__(self) -> None:
        self.due: list[str] = []
        self.deadlines = Deadlines[str](self.due.append, asyncio.get_running_loop().time)
        self.began = asyncio.get_running_loop().time()

    def set(self, name: str, in_s: float) -> None:
        self.deadlines.set(name, self.began + in_s)

    @property
    def has_timer(self) -> bool:
        return self.deadlines._timer is not None


@aio
async def test_names_come_in_the_order_of_their_deadlines() -> None:
    times = Times()
    for name, in_s in (("b", 0.04), ("a", 0.02), ("now", -1.0), ("later", 60.0)):
        times.set(name, in_s)
    await asyncio.sleep(0.1)
    assert times.due == ["now", "a", "b"]
    assert len(times.deadlines) == 1
    times.deadlines.clear()
    assert not times.has_timer


@aio
async def test_what_is_discarded_or_set_anew_is_not_due() -> None:
    times = Times()
    times.set("gone", 0.01)
    times.set("moved", 0.01)
    times.deadlines.discard("gone")
    times.deadlines.discard("never there")
    times.set("moved", 0.05)
    await asyncio.sleep(0.03)
    assert times.due == []
    await asyncio.sleep(0.05)
    assert times.due == ["moved"]


@aio
async def test_no_timer_runs_when_nothing_is_due() -> None:
    times = Times()
    assert not times.has_timer
    times.set("a", 60.0)
    assert times.has_timer
    times.deadlines.discard("a")
    assert not times.has_timer


@aio
async def test_deadlines_that_do_not_count_any_more_take_no_room() -> None:
    times = Times()
    times.set("stays", 50.0)
    for number in range(10_000):
        times.set(str(number), 60.0)
        times.deadlines.discard(str(number))
    assert len(times.deadlines._heap) < 200


@aio
async def test_another_deadline_may_be_set_when_one_is_due() -> None:
    loop, due = asyncio.get_running_loop(), []

    def again(name: str) -> None:
        due.append(name)
        if len(due) < 3:
            deadlines.set(name, loop.time() + 0.01)

    deadlines = Deadlines[str](again, loop.time)
    deadlines.set("a", loop.time())
    await asyncio.sleep(0.1)
    assert due == ["a", "a", "a"]
    assert len(deadlines) == 0
