"""Joins two processes: a ZeroMQ pair over a local socket, msgpack frames.

The front end binds a socket file in a directory of its own that nobody else may enter; the engine
connects to it. No limit on queued messages, so that the engine never waits for a slow reader.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from octavo.core.errors import EngineDead
from octavo.transport.messages import FromEngine, ToEngine

_LAST_MESSAGES_MS = 100
"""How long to look for messages that a dead engine has left behind."""


def _configure(socket: zmq.Socket[bytes] | zmq.asyncio.Socket) -> None:
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)


class ZmqEngineEnd:
    """The engine process's end."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        _configure(self._socket)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)

    def send(self, message: FromEngine) -> None:
        """See `EngineEnd.send`."""
        self._socket.send(self._encoder.encode(message))

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """See `EngineEnd.receive`."""
        wait_ms = None if timeout_s is None else int(timeout_s * 1000)
        messages: list[ToEngine] = []
        while self._socket.poll(0 if messages else wait_ms):
            messages.append(self._decoder.decode(self._socket.recv()))
        return messages

    def close(self) -> None:
        """Waits a moment until the last messages have left."""
        if not self._context.closed:
            self._socket.close(linger=1000)
            self._context.term()


class ZmqFrontEnd:
    """The front end's end. `connection_lost` tells it that the other process is gone."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="octavo-"))
        self.address = f"ipc://{self._directory}/engine"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        _configure(self._socket)
        self._socket.bind(self.address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._lost: asyncio.Future[str] | None = None

    async def send(self, message: ToEngine) -> None:
        """See `FrontEnd.send`. Messages to a process that is gone vanish."""
        if self._lost is None or not self._lost.done():
            await self._socket.send(self._encoder.encode(message))

    async def receive(self) -> FromEngine:
        """See `FrontEnd.receive`."""
        lost = self._loss()
        if not lost.done():
            frame = asyncio.ensure_future(self._socket.recv())
            await asyncio.wait((frame, lost), return_when=asyncio.FIRST_COMPLETED)
            if frame.done():
                return self._decoder.decode(frame.result())
            frame.cancel()
        if await self._socket.poll(_LAST_MESSAGES_MS):
            return self._decoder.decode(await self._socket.recv())
        raise EngineDead(lost.result())

    def connection_lost(self, reason: str) -> None:
        """The engine process has ended; call it in the event loop."""
        if not self._loss().done():
            self._loss().set_result(reason)

    def close(self) -> None:
        """Removes the socket and its directory."""
        if not self._context.closed:
            self._socket.close()
            self._context.term()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _loss(self) -> asyncio.Future[str]:
        if self._lost is None:
            self._lost = asyncio.get_running_loop().create_future()
        return self._lost
