"""``octavo serve``: the OpenAI API over HTTP, with the engine in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo import assemble
from octavo.cli.announcer import Announcer
from octavo.cli.logs import set_up_logging
from octavo.cli.options import add_config_options, given_options
from octavo.cli.sampling import add_engine_arguments, engine_options
from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.config import EngineConfig, ServerConfig
from octavo.core.errors import ConfigError
from octavo.core.observe_config import ObservabilityConfig
from octavo.front.supervisor import RestartLimits

if TYPE_CHECKING:
    from ssl import SSLContext

    from octavo.front.async_engine import AsyncEngine
    from octavo.server.access.control import Access
    from octavo.server.state import ServerState


logger = logging.getLogger(__name__)

SERVER_PARTS = (ServerConfig, SecurityConfig, LimitsConfig, ObservabilityConfig)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_engine_arguments(parser)
    add_config_options(parser, *SERVER_PARTS)


def run(args: argparse.Namespace) -> int:
    """Serves until told to leave; status 143 if that was before it was ready, by SIGTERM.

    Raises:
        EngineDead: the engine is gone, and starting it again does not help.
    """
    observability = ObservabilityConfig(**given_options(args, ObservabilityConfig))
    log_format = set_up_logging(observability.log_format)
    engine_config = EngineConfig.from_options(**engine_options(args))
    server_config = ServerConfig(
        security=SecurityConfig(**given_options(args, SecurityConfig)),
        limits=LimitsConfig(**given_options(args, LimitsConfig)),
        observability=observability,
        **given_options(args, ServerConfig),
    )
    try:
        event_loop_runner()(_serve(engine_config, server_config, Announcer(log_format)))
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


async def _serve(
    engine_config: EngineConfig, server_config: ServerConfig, announcer: Announcer
) -> None:
    from octavo.server.access.control import Access
    from octavo.server.sinks import make_sinks
    from octavo.server.tls import tls_context

    began = time.perf_counter()
    access = Access(server_config.security, server_config.limits)
    tls = tls_context(server_config.security)
    sinks = make_sinks(server_config.observability)
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
        state = make_state(engine, server_config, access, names, front)
        state.sinks = sinks
        announcer.ledger(await announcer.watch(engine))
        run.listen(sock)
        announcer.say(
            f"ready after {time.perf_counter() - began:.1f} s: "
            f"{run.address(sock, server_config)}  (model {names[0]}, {_who(access)})"
        )
        guard.start()
        app = create_app(state)
        await run.serve(app, engine, sock, server_config, announcer.say, tls)
    finally:
        guard.close()
        supervisor.close()
        for sink in sinks:
            sink.close()


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


def make_state(
    engine: AsyncEngine,
    config: ServerConfig,
    access: Access,
    names: tuple[str, ...],
    front: assemble.FrontModel,
) -> ServerState:
    """What the application serves.

    Raises:
        ConfigError: the chat template cannot be read.
    """
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
