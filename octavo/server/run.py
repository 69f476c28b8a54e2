"""Runs the application on a socket, and ends it in good order.

The first Ctrl-C or SIGTERM refuses new requests and lets the running ones finish for a while; the
second aborts them; the third ends the process the hard way.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import ssl
import stat
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from octavo.core.config import ServerConfig
from octavo.core.errors import ConfigError
from octavo.front.async_engine import AsyncEngine
from octavo.server.http_protocol import limited_protocol

_BACKLOG = 2048
_LAST_WORDS_S = 5
"""For clients to read what has been sent when everything else has ended."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MAX_FILES = 1 << 16

logger = logging.getLogger(__name__)


def bind(config: ServerConfig) -> socket.socket:
    """A bound socket, so that a port in use is known before a model is loaded.

    Raises:
        ConfigError: the address cannot be used.
    """
    if config.uds is not None:
        return _bind_path(config.uds)
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it. Without it, what is written in two pieces (head and body, or
    # events) waits for the client's delayed acknowledgement, 40 ms; only uvloop sets it by itself.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _give_up_slow_clients(sock, config.slow_client_timeout_s)
    try:
        sock.bind((config.host, config.port))
    except (OSError, TypeError, UnicodeError) as error:  # the last two: no possible host name
        sock.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {config.host!r} port {config.port}: {reason}; choose another --host "
            "or --port (0 for a free one)"
        ) from error
    return sock


def _give_up_slow_clients(sock: socket.socket, timeout_s: float) -> None:
    """Every connection that ``sock`` accepts inherits this: the kernel ends it when what is there
    for the client has not been taken for so long, be it that it does not read or that it is gone.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is None:
        logger.warning("slow_client_timeout_s has no effect: this system has no TCP_USER_TIMEOUT")
    else:
        sock.setsockopt(socket.IPPROTO_TCP, option, round(timeout_s * 1000))


def raise_file_limit() -> None:
    """Each connection is an open file, and the usual limit is 1024: takes what the system allows,
    up to 65,536."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _bind_path(path: str) -> socket.socket:
    """A socket in the file system; one that nobody listens on any more makes way for it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_left_behind(path):
            os.unlink(path)
        sock.bind(path)
    except OSError as error:
        sock.close()
        reason = error.strerror or error
        raise ConfigError(
            f"cannot listen on the Unix socket {path!r}: {reason}; choose another --uds"
        ) from error
    return sock


def _is_left_behind(path: str) -> bool:
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED


def address(sock: socket.socket, config: ServerConfig) -> str:
    """Where clients find the server, for people."""
    if sock.family == socket.AF_UNIX:
        return f"unix socket {config.uds}, {config.root_path}/v1"
    scheme = "http" if config.security.ssl_certfile is None else "https"
    host, port = sock.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{port}{config.root_path}/v1"


def listen(sock: socket.socket) -> None:
    """From now on clients may connect; they wait until `serve` answers."""
    sock.listen(_BACKLOG)


def _uvicorn_config(
    app: FastAPI, config: ServerConfig, tls: ssl.SSLContext | None
) -> uvicorn.Config:
    settings = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        http=limited_protocol(config.limits),
        ws="none",
        timeout_keep_alive=config.limits.keep_alive_timeout_s,
        access_log=config.access_log,
        lifespan="off",
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )
    settings.load()
    settings.ssl = tls
    if config.access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    return settings


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: ours drains first."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield

    async def abandon_connections(self) -> None:
        """Closes those whose clients do not take what is still there for them."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the loop closes them in its next round


async def serve(
    app: FastAPI,
    engine: AsyncEngine,
    sock: socket.socket,
    config: ServerConfig,
    notify: Callable[[str], None],
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serves until a signal, then drains and returns.

    Args:
        sock: from `bind`; closed in the end.
        notify: told in a sentence what is being waited for.
        tls: what to serve HTTPS with, from `octavo.server.tls`.

    Raises:
        EngineError: the engine is gone for good, and clients have been told.
    """
    server = _Server(_uvicorn_config(app, config, tls))
    stop = asyncio.Event()
    now = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if not stop.is_set():
            stop.set()
            return
        now.set()
        for number in _SIGNALS:  # the third one ends the process, whatever it is doing
            loop.remove_signal_handler(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    running = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        waiter = asyncio.create_task(stop.wait())
        gone = asyncio.create_task(engine.gone())
        await asyncio.wait((running, waiter, gone), return_when=asyncio.FIRST_COMPLETED)
        failure = gone.result() if gone.done() else None
        waiter.cancel()
        gone.cancel()
        if not running.done() and failure is None:
            await _drain(engine, config.drain_timeout_s, now, notify)
        await engine.shutdown()
        server.should_exit = True
        await running
        await server.abandon_connections()
        if failure is not None:
            raise failure
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        if config.uds is not None:
            with contextlib.suppress(OSError):
                os.unlink(config.uds)


async def _drain(
    engine: AsyncEngine, timeout_s: float, now: asyncio.Event, notify: Callable[[str], None]
) -> None:
    if engine.num_open:
        notify(
            f"finishing requests ({engine.num_open} in flight), {timeout_s:g} s at most; "
            "once more to stop at once"
        )
    drained = asyncio.create_task(engine.drain(timeout_s))
    hurry = asyncio.create_task(now.wait())
    await asyncio.wait((drained, hurry), return_when=asyncio.FIRST_COMPLETED)
    for task in (drained, hurry):
        task.cancel()
