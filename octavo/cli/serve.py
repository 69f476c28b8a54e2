"""``octavo serve``: the OpenAI API over HTTP, with the engine in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from octavo import assemble
from octavo.cli.logs import set_up_logging
from octavo.cli.options import add_config_options, given_options
from octavo.cli.sampling import add_engine_arguments, engine_options
from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.config import EngineConfig, ServerConfig
from octavo.core.errors import ConfigError
from octavo.front.supervisor import RestartLimits

if TYPE_CHECKING:
    from ssl import SSLContext

    from octavo.core.info import EngineInfo
    from octavo.front.async_engine import AsyncEngine
    from octavo.server.access.control import Access
    from octavo.server.state import ServerState


logger = logging.getLogger(__name__)

SERVER_PARTS = (ServerConfig, SecurityConfig, LimitsConfig)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_engine_arguments(parser)
    add_config_options(parser, *SERVER_PARTS)


def run(args: argparse.Namespace) -> int:
    """Serves until told to leave; status 143 if that was before it was ready, by SIGTERM.

    Raises:
        EngineDead: the engine is gone, and starting it again does not help.
    """
    set_up_logging()
    engine_config = EngineConfig.from_options(**engine_options(args))
    server_config = ServerConfig(
        security=SecurityConfig(**given_options(args, SecurityConfig)),
        limits=LimitsConfig(**given_options(args, LimitsConfig)),
        **given_options(args, ServerConfig),
    )
    try:
        event_loop_runner()(_serve(engine_config, server_config))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    return 0


def event_loop_runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    """uvloop's where it is installed (it halves the cost of a streamed chunk), or asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    runner: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run
    return runner


async def _serve(engine_config: EngineConfig, server_config: ServerConfig) -> None:
    from octavo.server.access.control import Access
    from octavo.server.tls import tls_context

    console = Console(stderr=True, highlight=False)
    began = time.perf_counter()
    access = Access(server_config.security, server_config.limits)
    tls = tls_context(server_config.security)
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - this is a coroutine of a task
    # While the model loads; then `run.serve` has handlers of its own.
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    if server_config.security.api_key_file is not None or tls is not None:
        loop.add_signal_handler(signal.SIGHUP, _reload, access, tls, server_config.security)
    limits = RestartLimits(
        max_restarts=server_config.max_engine_restarts,
        hang_timeout_s=server_config.engine_timeout_s,
    )
    supervisor = assemble.supervise_engine(engine_config, limits)
    guard = assemble.make_grammar_guard(engine_config.model)
    try:
        # Imported while the other process loads the model.
        from octavo.server import run
        from octavo.server.app import create_app

        run.raise_file_limit()
        sock = run.bind(server_config)
        front = assemble.read_front(engine_config.model)
        names = server_config.served_model_name or (engine_config.model.model,)
        engine = assemble.make_async_engine(supervisor, front, names[0], guard)
        state = _state(engine, server_config, access, names, front)
        info = await _start(engine, console)
        _print_ledger(console, info)
        run.listen(sock)
        console.print(
            f"ready after {time.perf_counter() - began:.1f} s: "
            f"{run.address(sock, server_config)}  (model {names[0]}, {_who(access)})"
        )
        app = create_app(state)
        await run.serve(app, engine, sock, server_config, console.print, tls)
    finally:
        guard.close()
        supervisor.close()


def _reload(access: Access, tls: SSLContext | None, config: SecurityConfig) -> None:
    """Reads keys and certificate again; what cannot be used is logged, and changes nothing."""
    from octavo.server.tls import load_certificate

    works: dict[str, Callable[[], None]] = {"API keys": access.reload}
    if tls is not None:
        works["certificate"] = partial(load_certificate, tls, config)
    for what, work in works.items():
        try:
            work()
        except ConfigError as error:
            logger.error("reload, %s: all stays as before: %s", what, error)
    logger.warning("reloaded: %s", _who(access))


def _who(access: Access) -> str:
    return f"{access.num_keys} API keys" if access.needs_key else "open to everybody"


def _state(
    engine: AsyncEngine,
    config: ServerConfig,
    access: Access,
    names: tuple[str, ...],
    front: assemble.FrontModel,
) -> ServerState:
    from octavo.server.state import ServerState
    from octavo.tokenizer.chat_template import ChatTemplate

    template = front.tokenizer.chat_template
    if config.chat_template is not None:
        try:
            template = Path(config.chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"chat_template {config.chat_template}: {error}") from error
    return ServerState(
        engine=engine,
        config=config,
        access=access,
        model_names=names,
        generation_defaults=front.generation_defaults,
        chat_template=ChatTemplate(template, front.tokenizer.special_tokens),
    )


async def _start(engine: AsyncEngine, console: Console) -> EngineInfo:
    """Waits for the engine, with a bar where somebody can see one."""
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("starting", total=1.0)
        return await engine.start(
            lambda stage, share: bar.update(task, description=stage, completed=share)
        )


def _print_ledger(console: Console, info: EngineInfo) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("model", f"{info.model} ({info.spec.architecture}, {info.dtype})")
    table.add_row("device", f"{info.device}, attention: {info.attention_backend}")
    for what, amount in info.cache_plan.ledger():
        table.add_row(what, amount)
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in info.startup_s.items())
    table.add_row("start", parts)
    console.print(table)
