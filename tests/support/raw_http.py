"""A real server on a real socket, and clients that speak to it byte by byte."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from support.fake_engine import Served, served

from octavo.core.config import ServerConfig
from octavo.server import run

PATIENCE_S = 20.0


@dataclass(slots=True)
class Listening:
    """A server that listens."""

    parts: Served
    port: int

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, data: bytes) -> bytes:
        """Everything that comes back until the server closes the connection."""
        reader, writer = await self.connect()
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), PATIENCE_S)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


@asynccontextmanager
async def listening_here(
    config: ServerConfig, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[Listening]:
    """The server as `run.serve` runs it, in this event loop, ended by a signal."""
    async with served(config=config, **options) as parts:
        sock = run.bind(config)
        name = sock.getsockname()
        engine = parts.state.engine
        serving = asyncio.create_task(run.serve(parts.app, engine, sock, config, print, tls))
        while not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            await asyncio.sleep(0.005)
        try:
            yield Listening(parts, 0 if isinstance(name, str) else name[1])
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(serving, PATIENCE_S)


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request that closes its connection afterwards."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: test",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def get(path: str, *headers: str) -> bytes:
    """A request that closes its connection afterwards."""
    lines = [f"GET {path} HTTP/1.1", "Host: test", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def status_of(raw: bytes) -> int:
    """The status of a raw answer; 0 if there is none."""
    return int(raw.split(b" ", 2)[1]) if raw else 0
