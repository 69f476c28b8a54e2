"""Joins an event loop and an engine thread of the same process."""

from __future__ import annotations

import asyncio
import contextlib
import queue

from octavo.core.errors import EngineDead
from octavo.transport.messages import FromEngine, Shutdown, ToEngine


class InprocEngineEnd:
    """The engine thread's end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self.outbox: asyncio.Queue[FromEngine | None] = asyncio.Queue()

    def send(self, message: FromEngine) -> None:
        """See `EngineEnd.send`. Messages to an event loop that is closed vanish."""
        self._post(message)

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """See `EngineEnd.receive`."""
        messages: list[ToEngine] = []
        with contextlib.suppress(queue.Empty):
            if timeout_s != 0:
                messages.append(self.inbox.get(timeout=timeout_s))
            while True:
                messages.append(self.inbox.get_nowait())
        return messages

    def close(self) -> None:
        """The front end's `receive` raises once it has had all messages."""
        self._post(None)

    def _post(self, message: FromEngine | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self.outbox.put_nowait, message)


class InprocFrontEnd:
    """The event loop's end."""

    def __init__(self, engine_end: InprocEngineEnd) -> None:
        self._other = engine_end

    async def send(self, message: ToEngine) -> None:
        """See `FrontEnd.send`."""
        self._other.inbox.put(message)

    async def receive(self) -> FromEngine:
        """See `FrontEnd.receive`."""
        message = await self._other.outbox.get()
        if message is None:
            self._other.outbox.put_nowait(None)
            raise EngineDead("the engine has ended: start it again")
        return message

    def close(self) -> None:
        """Lets the engine's thread end: nobody else could tell it to."""
        self._other.inbox.put(Shutdown())


def make_pair() -> tuple[InprocFrontEnd, InprocEngineEnd]:
    """Both ends of a new link; call it in the event loop that will use the front end."""
    engine_end = InprocEngineEnd(asyncio.get_running_loop())
    return InprocFrontEnd(engine_end), engine_end
