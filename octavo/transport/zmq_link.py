"""Joins two processes: a ZeroMQ pair over a local socket, msgpack frames.

The front end binds a socket file in a directory of its own that nobody else may enter; the engine
connects to it. No limit on queued messages, so that the engine never waits for a slow reader. The
directory is removed with the engine's first message, when the file has served its purpose: nothing
is left behind then, even if both processes are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import tempfile
import weakref
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from octavo.core.errors import ConfigError, EngineDead
from octavo.transport.messages import FromEngine, ToEngine

_LAST_MESSAGES_MS = 100
"""How long to look for messages that a dead engine has left behind."""

_FAREWELL_MS = 1000
"""How long an engine that ends tries to get rid of its last messages."""


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
        """See `EngineEnd.send`. Messages to a front end that is gone vanish."""
        with contextlib.suppress(zmq.Again):
            self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """See `EngineEnd.receive`."""
        messages: list[ToEngine] = []
        if timeout_s != 0:
            self._socket.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
        with contextlib.suppress(zmq.Again):
            while True:
                messages.append(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
        return messages

    def close(self) -> None:
        """Waits a moment until the last messages have left."""
        if not self._context.closed:
            self._socket.close(linger=_FAREWELL_MS)
            self._context.term()


class ZmqFrontEnd:
    """The front end's end. `connection_lost` tells it that the other process is gone.

    Raises:
        ConfigError: the path of the temporary directory is too long for a socket.
    """

    def __init__(self) -> None:
        directory = Path(tempfile.mkdtemp(prefix="octavo-"))  # open to this user alone
        self._remove_directory = weakref.finalize(
            self, shutil.rmtree, directory, ignore_errors=True
        )
        path = directory / "engine"
        if len(str(path).encode()) > zmq.IPC_PATH_MAX_LEN:
            self._remove_directory()
            raise ConfigError(
                f"{path} is too long for a socket, which may have {zmq.IPC_PATH_MAX_LEN} "
                "characters: set TMPDIR to a shorter path"
            )
        self.address = f"ipc://{path}"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        _configure(self._socket)
        self._socket.bind(self.address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._lost: asyncio.Future[str] | None = None

    async def send(self, message: ToEngine) -> None:
        """See `FrontEnd.send`. Messages to a process that is gone vanish."""
        frame = self._encoder.encode(message)
        # Without a peer, a send that may wait does so for ever.
        with contextlib.suppress(zmq.Again):
            await self._socket.send(frame, zmq.NOBLOCK)

    async def receive(self) -> FromEngine:
        """See `FrontEnd.receive`."""
        message = self._decoder.decode(await self._frame())
        if self._remove_directory.alive:
            self._remove_directory()
        return message

    def connection_lost(self, reason: str) -> None:
        """The engine process has ended; call it in the event loop."""
        if not self._loss().done():
            self._loss().set_result(reason)

    def close(self) -> None:
        """Frees the socket and its directory."""
        if not self._context.closed:
            self._socket.close()
            self._context.term()
        self._remove_directory()

    async def _frame(self) -> bytes:
        lost = self._loss()
        if not lost.done():
            frame = asyncio.ensure_future(self._socket.recv())
            try:
                await asyncio.wait((frame, lost), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not frame.done():
                    frame.cancel()
            if not frame.cancelled():
                return frame.result()
        if await self._socket.poll(_LAST_MESSAGES_MS):
            return await self._socket.recv()
        raise EngineDead(lost.result())

    def _loss(self) -> asyncio.Future[str]:
        if self._lost is None:
            self._lost = asyncio.get_running_loop().create_future()
        return self._lost
