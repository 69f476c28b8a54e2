"""A server whose engine is a process of its own, the echo engine's, under a real supervisor."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from support.echo_engine import CONFIG_LINE, Behaviour, child_command
from support.fake_engine import Script, Served, served

from octavo.front.process import EngineProcess
from octavo.front.supervisor import RestartLimits, Supervisor
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.transport.zmq_link import ZmqFrontEnd


def supervisor_of(behaviour: Behaviour, **limits: Any) -> Supervisor:
    def launch() -> tuple[EngineProcess, ZmqFrontEnd]:
        link = ZmqFrontEnd()
        process = EngineProcess(child_command(link.address, behaviour), CONFIG_LINE)
        process.watch(link.connection_lost)
        return process, link

    return Supervisor(
        launch, RestartLimits(**{"max_restarts": 10, "hang_timeout_s": 0.0, **limits})
    )


@asynccontextmanager
async def supervised(
    tokenizer: Tokenizer, behaviour: Behaviour, **limits: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Served, Supervisor]]:
    """(client, parts, supervisor) of a server."""
    supervisor = supervisor_of(behaviour, **limits)
    async with served(Script(), tokenizer=tokenizer, link=supervisor) as parts:
        transport = httpx.ASGITransport(parts.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client, parts, supervisor


def num_files() -> int:
    """Files and sockets that this process has open."""
    return len(os.listdir("/proc/self/fd"))


def children() -> list[int]:
    """Processes that this one has started and that are there still, zombies included."""
    return [child.pid for child in psutil.Process().children()]


def shared_memory() -> set[str]:
    """Everything in the system's shared memory."""
    return {path.name for path in Path("/dev/shm").iterdir()}
