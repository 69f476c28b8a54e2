"""``octavo batch``: a file of requests in OpenAI's batch format, answered without a server.

Requests go through the same application as those of ``octavo serve``, in this process and without
a socket; the engine is a process of its own. Outcomes are written as they come. Ctrl-C ends the
batch: what was not served is marked so in the output, and ``--resume`` goes on with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from octavo import assemble
from octavo.cli.announcer import Announcer
from octavo.cli.logs import set_up_logging
from octavo.cli.options import add_config_options, given_options
from octavo.cli.sampling import add_engine_arguments, engine_options
from octavo.cli.serve import event_loop_runner, make_state
from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.config import EngineConfig, ServerConfig
from octavo.core.errors import ConfigError, EngineError
from octavo.front.supervisor import RestartLimits

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from octavo.front.async_engine import AsyncEngine
    from octavo.server.batch.files import OutcomeFile
    from octavo.server.batch.lines import Outcome
    from octavo.server.batch.runner import BatchRunner, Tally

_SERVER_FLAGS = frozenset(
    {
        "served_model_name",
        "chat_template",
        "trust_request_chat_template",
        "tool_call_parser",
        "reasoning_parser",
        "max_logprobs",
        "pooling",
    }
)
_NO_FLAGS = frozenset(item.name for item in dataclasses.fields(ServerConfig)) - _SERVER_FLAGS
_MORE_THAN_RUN = 16
"""Requests that wait in the engine, so that no place in it is empty while an answer is written."""
_TELL_EVERY_S = 30.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_engine_arguments(parser)
    parser.add_argument(
        "-i", "--input", type=Path, required=True, help="JSON-lines file of requests"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="JSON-lines file for the outcomes"
    )
    if_there = parser.add_mutually_exclusive_group()
    if_there.add_argument(
        "--resume",
        action="store_true",
        help="keep the answers that are in the output file, and make the other requests",
    )
    if_there.add_argument(
        "--overwrite", action="store_true", help="forget what is in the output file"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="requests to have in flight [a few more than --max-num-seqs]",
    )
    add_config_options(parser, ServerConfig, skip=_NO_FLAGS)


def run(args: argparse.Namespace) -> int:
    """Serves the file; status 1 if a request failed, 130 after Ctrl-C, 143 after SIGTERM.

    Raises:
        ConfigError: a file cannot be used.
        EngineDead: the engine is gone, and starting it again does not help.
    """
    from octavo.server.batch.files import OutcomeFile

    set_up_logging()
    if args.concurrency is not None and args.concurrency < 1:
        raise ConfigError(f"concurrency is {args.concurrency}: use 1 or more")
    engine_config = EngineConfig.from_options(**engine_options(args))
    server_config = ServerConfig(
        # Nobody else is here who might be kept waiting.
        max_waiting_requests=0,
        max_waiting_tokens=0,
        **given_options(args, ServerConfig),
    )
    ids = _custom_ids(args.input)
    output = OutcomeFile(args.output)
    done = _prepare(output, args, ids)
    batch = _Batch(args, output, done, num_lines=sum(ids.values()))
    try:
        event_loop_runner()(batch.serve(engine_config, server_config))
    except asyncio.CancelledError:
        batch.signal = batch.signal or signal.SIGTERM
    finally:
        output.close()
    if batch.signal is not None:
        return 128 + batch.signal
    return int(batch.tally is None or batch.tally.num_failed > 0)


def _custom_ids(path: Path) -> dict[str | None, int]:
    """Ids of the requests of a file, and how many lines have each; None for lines without one.

    Raises:
        ConfigError: the file cannot be read, or holds no request.
    """
    from octavo.server.batch.files import requests
    from octavo.server.batch.lines import parse

    found: dict[str | None, int] = {}
    for number, raw in requests(path):
        name = parse(number, raw, ()).custom_id
        found[name] = found.get(name, 0) + 1
    if not found:
        raise ConfigError(f"{path} holds no requests")
    return found


def _prepare(output: OutcomeFile, args: argparse.Namespace, ids: dict[str | None, int]) -> set[str]:
    """Looks at what is in the output file already; returns the ids of what need not be done."""
    with contextlib.suppress(OSError):
        if args.output.samefile(args.input):
            raise ConfigError(f"{args.output} is the input as well: choose another output file")
    output.check_writable()
    if output.is_empty() or args.overwrite:
        return set()
    if not args.resume:
        raise ConfigError(
            f"{args.output} is not empty: go on with it by --resume, or start anew by --overwrite"
        )
    return output.survey({name for name in ids if name is not None})


class _Batch:
    """One run of the command."""

    def __init__(
        self, args: argparse.Namespace, output: OutcomeFile, done: set[str], num_lines: int
    ) -> None:
        self.signal: int | None = None
        """That has ended it."""
        self.tally: Tally | None = None
        self._args = args
        self._output = output
        self._done = done
        self._num_lines = num_lines
        self._announcer = Announcer("text")
        self._runner: BatchRunner | None = None

    async def serve(self, engine_config: EngineConfig, server_config: ServerConfig) -> None:
        """Starts an engine, and makes all requests."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine of a task
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._leave, number, task)
        limits = RestartLimits(
            max_restarts=server_config.max_engine_restarts,
            hang_timeout_s=server_config.engine_timeout_s,
        )
        supervisor = assemble.supervise_engine(engine_config, limits)
        guard = assemble.make_grammar_guard(engine_config.model)
        try:
            from octavo.server.access.control import Access

            front = assemble.read_front(engine_config.model)
            names = server_config.served_model_name or (engine_config.model.model,)
            engine = assemble.make_async_engine(supervisor, front, names[0], guard)
            access = Access(SecurityConfig(), LimitsConfig(), reads_environment=False)
            state = make_state(engine, server_config, access, names, front)
            self._announcer.ledger(await self._announcer.watch(engine))
            try:
                from octavo.server.app import create_app

                app = create_app(state)
                await self._make(app, app.openapi()["paths"], engine)
            finally:
                await engine.shutdown()
        finally:
            guard.close()
            supervisor.close()

    def _leave(self, number: int, task: asyncio.Task[None]) -> None:
        """Ends the batch in good order; the next signal ends the process as it would by default."""
        self.signal = number
        loop = asyncio.get_running_loop()
        for other in _SIGNALS:
            loop.remove_signal_handler(other)
        if self._runner is None:  # still loading
            task.cancel()
        else:
            self._runner.end()

    async def _make(self, app: ASGIApp, endpoints: Collection[str], engine: AsyncEngine) -> None:
        from octavo.server.batch.files import requests
        from octavo.server.batch.runner import BatchRunner

        num_at_once = self._args.concurrency or engine.info.max_num_seqs + _MORE_THAN_RUN
        began = time.monotonic()
        self._output.open(self._done)  # not before: what is there stays if no engine can be started
        with self._progress() as advance:

            def take(outcome: Outcome) -> None:
                self._output.append(outcome)
                advance(runner.tally)

            runner = self._runner = BatchRunner(app, endpoints, take, done=self._done)
            watcher = asyncio.create_task(self._end_with(engine, runner))
            try:
                self.tally = await runner.run(requests(self._args.input), num_at_once)
            finally:
                watcher.cancel()
        self._announcer.say(self._summary(self.tally, time.monotonic() - began))
        if watcher.done() and not watcher.cancelled():
            raise watcher.result()

    async def _end_with(self, engine: AsyncEngine, runner: BatchRunner) -> EngineError:
        """An engine that is gone for good answers nothing more."""
        error = await engine.gone()
        runner.end()
        return error

    @contextlib.contextmanager
    def _progress(self) -> Iterator[Callable[[Tally], None]]:
        """Yields what is to be told of each outcome: a bar, or a line from time to time."""
        total = self._num_lines - len(self._done)
        if not sys.stderr.isatty():
            told = time.monotonic()

            def say(tally: Tally) -> None:
                nonlocal told
                if time.monotonic() - told >= _TELL_EVERY_S:
                    told = time.monotonic()
                    self._announcer.say(
                        f"{tally.num_done:,} of {total:,} requests, {tally.num_failed:,} failed"
                    )

            yield say
            return
        columns = (
            TextColumn("requests"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[failed]:,} failed"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total, failed=0)
            yield lambda tally: bar.update(task, completed=tally.num_done, failed=tally.num_failed)

    def _summary(self, tally: Tally, seconds: float) -> str:
        said = (
            f"{tally.num_done:,} requests in {seconds:.1f} s, {tally.num_failed:,} failed; "
            f"{tally.prompt_tokens:,} prompt tokens, {tally.output_tokens:,} generated "
            f"({tally.output_tokens / max(seconds, 1e-9):,.1f} a second)"
        )
        if self._done:
            said += f"; {len(self._done):,} had been served before"
        if tally.num_cancelled:
            said += (
                f"; {tally.num_cancelled:,} were not served, and are marked so in "
                f"{self._output.path}: go on with --resume"
            )
        return said
