"""The two ends of the link between front end and engine.

One link joins one front end to one engine, in order and without loss. `inproc` joins two threads,
`zmq_link` two processes; neither end can tell which it has.
"""

from __future__ import annotations

from typing import Protocol

from octavo.transport.messages import FromEngine, Lost, ToEngine


class EngineEnd(Protocol):
    """What the engine's loop holds. Blocking; used from one thread."""

    def send(self, message: FromEngine) -> None:
        """Hands a message over; never blocks on a slow reader."""

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """All messages that have arrived, in order; waits up to ``timeout_s`` (None: for ever)
        if there is none. ``0`` does not wait."""

    def close(self) -> None:
        """Frees the link's resources; may be called twice."""


class FrontEnd(Protocol):
    """What the asynchronous front end holds. Used from one event loop."""

    async def send(self, message: ToEngine) -> None:
        """Hands a message over."""

    async def receive(self) -> FromEngine | Lost:
        """The next message.

        Raises:
            EngineDead: the engine is gone for good and no message remains.
        """

    def close(self) -> None:
        """Frees the link's resources; may be called twice."""
