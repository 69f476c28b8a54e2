"""A tiny model behind the whole server, in this process and on a socket: only the size is not real."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn

from octavo import assemble
from octavo.cli.serve import make_state
from octavo.core.config import EngineConfig, ServerConfig
from octavo.server import run
from octavo.server.access.control import Access
from octavo.server.app import create_app

MODEL = "tiny"


@contextmanager
def real_server(
    checkpoint: Path, config: ServerConfig | None = None, *, max_model_len: int = 64
) -> Iterator[tuple[str, Any]]:
    """(address, application) of a server in a thread of its own."""
    config = replace(config or ServerConfig(), host="127.0.0.1", port=0)
    ready = threading.Event()
    found: list[Any] = []
    failures: list[BaseException] = []

    async def main() -> None:
        engine_config = EngineConfig.from_options(
            model=str(checkpoint),
            max_model_len=max_model_len,
            num_blocks=1024,
            num_threads=1,
            policy="priority",
        )
        front = assemble.read_front(engine_config.model)
        _, link = assemble.start_engine_thread(engine_config)
        engine = assemble.make_async_engine(link, front, MODEL)
        await engine.start()
        access = Access(config.security, config.limits, reads_environment=False)
        app = create_app(make_state(engine, config, access, (MODEL,), front))
        sock = run.bind(config)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        task = asyncio.create_task(server.serve([sock]))
        while not server.started:
            await asyncio.sleep(0.005)
        found.extend([f"http://127.0.0.1:{sock.getsockname()[1]}", app, server])
        ready.set()
        await task
        await engine.shutdown()

    def serve() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=serve, name="server-under-test")
    thread.start()
    ready.wait(60)
    if failures:
        raise failures[0]
    try:
        yield found[0], found[1]
    finally:
        found[2].should_exit = True
        thread.join(30)
        assert not thread.is_alive()
