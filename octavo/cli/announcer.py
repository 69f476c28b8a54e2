"""What ``octavo serve`` says of its own: to people on a terminal, or to whoever reads JSON."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

if TYPE_CHECKING:
    from octavo.core.info import EngineInfo
    from octavo.front.async_engine import AsyncEngine

logger = logging.getLogger("octavo.serve")


class Announcer:
    """Prints for people; with the format ``json`` everything is a log line, so that standard error
    holds nothing else."""

    def __init__(self, log_format: str) -> None:
        self._is_json = log_format == "json"
        self._console = Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """A sentence."""
        if self._is_json:
            logger.info("%s", text)
        else:
            self._console.print(text)

    async def watch(self, engine: AsyncEngine) -> EngineInfo:
        """Waits for the engine, with a bar where somebody can see one."""
        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
        )
        is_hidden = self._is_json or not sys.stderr.isatty()
        with Progress(*columns, console=self._console, transient=True, disable=is_hidden) as bar:
            task = bar.add_task("starting", total=1.0)
            return await engine.start(
                lambda stage, share: bar.update(task, description=stage, completed=share)
            )

    def ledger(self, info: EngineInfo) -> None:
        """The model, and where memory goes."""
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in info.startup_s.items())
        rows = [
            ("model", f"{info.model} ({info.spec.architecture}, {info.weights})"),
            ("device", f"{info.device}, attention: {info.attention_backend}"),
            *info.cache_plan.ledger(),
            ("step", f"{info.max_num_batched_tokens:,} tokens at most ({info.step_size_reason})"),
            ("start", parts),
        ]
        if self._is_json:
            logger.info("%s", "; ".join(f"{what}: {amount}" for what, amount in rows))
            return
        width = max(len(what) for what, _ in rows)
        for what, amount in rows:  # a table would fill its last column with blanks
            line = f"{what:<{width}}  {amount}".rstrip()
            self._console.print(line, soft_wrap=True, markup=False)
