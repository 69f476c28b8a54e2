"""Keeps an engine's process running: watches it, and starts it again when it dies or hangs.

A `Supervisor` is the front end's link to whichever process serves at the moment. When one dies,
`receive` says so at once (`Lost`), and the next calls clear away what is left of it, and start
another one, which says `Ready` in the end.

Engines that die in a row while they start, or over the first thing that they are asked, are no use
starting again for ever: from the fourth on there is a wait that doubles, and in the end they are
given up. One that answers, or that nobody has asked, makes all deaths before it forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from octavo.core.errors import EngineDead
from octavo.core.protocols import Clock
from octavo.transport.base import FrontEnd
from octavo.transport.messages import Failed, FromEngine, Lost, Ready, StepDone, Submit, ToEngine

logger = logging.getLogger(__name__)

_NUM_AT_ONCE = 3
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 30.0
_PROVEN_AFTER_S = 10.0
"""An engine that has been ready for so long is no such case, whatever it has answered."""


class Process(Protocol):
    """What the supervisor needs of `octavo.front.process.EngineProcess`."""

    @property
    def pid(self) -> int:
        """Process id."""

    def kill(self, because: str) -> None:
        """Ends it at once."""

    def stop(self) -> None:
        """Ends it, and waits until it is gone; may be called twice."""


Launch = Callable[[], tuple[Process, FrontEnd]]
"""Starts a process, and makes the link to it, which learns of its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLimits:
    """When to start an engine again."""

    max_restarts: int
    """Restarts in a row of engines that have not answered; 0 for no restart at all."""
    hang_timeout_s: float
    """Seconds without a sign of life from an engine that has work; 0 for as long as it takes."""


class Supervisor:
    """Implements `FrontEnd`. Make it, and use it, in the event loop that the links belong to.

    Raises:
        EngineDead: the process cannot be started.
    """

    def __init__(
        self, launch: Launch, limits: RestartLimits, *, clock: Clock = time.monotonic
    ) -> None:
        self._launch = launch
        self._limits = limits
        self._clock = clock
        self._launched_at = clock()
        self._process, self._link = launch()
        self._ready_at: float | None = None
        self._has_been_ready = False
        self._was_asked = False
        self._has_answered = False
        self._start_s = 0.0
        """How long the last start took."""
        self._num_deaths = 0
        """In a row, of engines that had not answered."""
        self._delay_s: float | None = None
        """How long to wait before the next start, if the process is gone."""
        self._num_open = 0
        """Completions that the engine has been sent, and has not ended."""
        self._heard_at = 0.0
        self._busy = asyncio.Event()
        self._watchdog: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Of the process that serves now, or served last."""
        return self._process.pid

    async def send(self, message: ToEngine) -> None:
        """See `FrontEnd.send`. While there is no engine, messages vanish."""
        if self._delay_s is not None:
            return
        if isinstance(message, Submit):
            self._was_asked = True
            if not self._num_open:
                self._heard_at = self._clock()
                self._busy.set()
            self._num_open += message.params.n
        await self._link.send(message)

    async def receive(self) -> FromEngine | Lost:
        """See `FrontEnd.receive`.

        Raises:
            EngineDead: the first start has failed, or too many engines have died in a row.
        """
        try:
            if self._delay_s is not None:
                await self._replace(self._delay_s)
            message = await self._link.receive()
        except EngineDead as error:
            return self._lose(str(error))
        except Exception as error:  # whatever sends what nobody can read is no engine
            logger.exception("the link to the engine has failed")
            return self._lose(f"the link to the engine failed: {type(error).__name__}: {error}")
        if isinstance(message, StepDone):
            self._take_note(message)
        elif isinstance(message, Ready):
            self._is_ready()
        elif isinstance(message, Failed) and self._has_been_ready:
            return self._lose(message.error)
        return message

    def close(self) -> None:
        """Ends the process, and frees the link; may be called twice."""
        self._stop_watchdog()
        self._process.stop()
        self._link.close()

    def _is_ready(self) -> None:
        self._ready_at = self._heard_at = now = self._clock()
        self._start_s = now - self._launched_at
        if self._has_been_ready:
            logger.warning(
                "the engine is back, %.1f s after its start (pid %d)", self._start_s, self.pid
            )
        self._has_been_ready = True
        if self._limits.hang_timeout_s:
            self._watchdog = asyncio.create_task(self._watch(self._process), name="octavo-watchdog")

    def _take_note(self, message: StepDone) -> None:
        self._heard_at = self._clock()
        for delta in message.deltas:
            if delta.new_token_ids:
                self._has_answered = True
            if delta.finish_reason is not None:
                self._num_open -= 1
        if self._num_open <= 0:
            self._busy.clear()

    async def _watch(self, process: Process) -> None:
        """Kills an engine that has work and is silent for too long. Sleeps while it has none."""
        limit = self._limits.hang_timeout_s
        while True:
            await self._busy.wait()
            silent_s = self._clock() - self._heard_at
            if silent_s >= limit:
                process.kill(f"it had work, but gave no sign of life for {silent_s:.0f} s")
                return
            await asyncio.sleep(limit - silent_s)

    def _stop_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def _lose(self, reason: str) -> Lost:
        """Decides what follows from a death.

        Raises:
            EngineDead: nothing does.
        """
        if not self._has_been_ready:
            raise EngineDead(reason)
        self._stop_watchdog()
        now, limit = self._clock(), self._limits.max_restarts
        if self._ready_at is not None and (
            self._has_answered or not self._was_asked or now - self._ready_at >= _PROVEN_AFTER_S
        ):
            self._num_deaths = 0
        self._num_deaths += 1
        self._ready_at, self._num_open = None, 0
        self._was_asked = self._has_answered = False
        self._busy.clear()
        if self._num_deaths > limit:
            text = f"{reason}; it is not started again (max_engine_restarts is {limit})"
            logger.critical("%s", text)
            raise EngineDead(text)
        repeats = self._num_deaths - _NUM_AT_ONCE
        delay = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** (repeats - 1)) if repeats > 0 else 0.0
        self._delay_s = delay
        logger.error(
            "%s; it is started again%s (attempt %d of %d)",
            reason,
            f" in {delay:g} s" if delay else "",
            self._num_deaths,
            limit,
        )
        return Lost(reason, delay + self._start_s)

    async def _replace(self, delay_s: float) -> None:
        """Clears away the process that is gone, and starts another one."""
        # It may have said that it is about to end, or have closed its socket, and be there still.
        await asyncio.to_thread(self._process.stop)
        self._link.close()
        await asyncio.sleep(delay_s)
        self._launched_at = self._clock()
        self._process, self._link = self._launch()
        self._delay_s = None
