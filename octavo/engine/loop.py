"""Runs an engine behind a link: messages in, steps, messages out.

Idle costs nothing: with no request left the loop blocks on the link.
"""

from __future__ import annotations

import logging

from octavo.core.errors import EngineError, RequestError
from octavo.core.info import EngineInfo
from octavo.core.plan import RequestDelta
from octavo.core.protocols import Clock
from octavo.core.request import Request
from octavo.engine.core import Engine, refusal
from octavo.transport.base import EngineEnd
from octavo.transport.messages import (
    Abort,
    Failed,
    Inspect,
    Inspected,
    Ready,
    Shutdown,
    StepDone,
    Submit,
    ToEngine,
    Unwatch,
    Watch,
    Watched,
)

logger = logging.getLogger(__name__)


def failure(error: BaseException) -> Failed:
    """The message that tells the front end why the engine ends."""
    expected = isinstance(error, EngineError)
    text = str(error) if expected else f"{type(error).__name__}: {error}"
    return Failed(text, type(error).__name__ if expected else "EngineDead")


class EngineLoop:
    """Owns the engine's side of a link until `Shutdown` arrives or the engine fails."""

    def __init__(self, engine: Engine, link: EngineEnd, info: EngineInfo, *, clock: Clock) -> None:
        self._engine = engine
        self._link = link
        self._info = info
        self._clock = clock
        self._leaving = False

    def run(self) -> None:
        """Serves until told to leave. An unexpected failure is reported over the link."""
        self._link.send(Ready(self._info))
        self._link.send(StepDone((), self._engine.stats()))
        try:
            while not self._leaving:
                self._turn()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            logger.error("the engine cannot go on", exc_info=error)
            self._link.send(failure(error))

    def _turn(self) -> None:
        """Takes in what has arrived, then runs one step; waits if there is nothing to run."""
        deltas: list[RequestDelta] = []
        for message in self._link.receive(self._engine.wait_s):
            deltas += self._handle(message)
        if self._leaving:
            deltas += self._engine.abort_all()
        if self._engine.has_work:
            stepped, stats = self._engine.step()
            deltas += stepped
        elif deltas:
            stats = self._engine.stats()
        else:
            return
        self._link.send(StepDone(tuple(deltas), stats))

    def _handle(self, message: ToEngine) -> list[RequestDelta]:
        match message:
            case Submit():
                return self._submit(message)
            case Abort(request_ids):
                return self._engine.abort(request_ids)
            case Inspect():
                return self._inspect(message)
            case Watch():
                changes = self._engine.watch(
                    message.max_requests, message.num_text_tokens, afresh=message.afresh
                )
                self._link.send(Watched(message.number, changes))
                return []
            case Unwatch():
                self._engine.unwatch()
                return []
            case Shutdown():
                self._leaving = True
                return []

    def _inspect(self, message: Inspect) -> list[RequestDelta]:
        first = min(message.first_block, self._info.cache_plan.num_blocks)
        stop = min(first + message.num_blocks, self._info.cache_plan.num_blocks)
        wanted = range(first, stop) if message.num_blocks else None
        snapshot = self._engine.snapshot(message.max_requests, wanted)
        self._link.send(Inspected(message.number, snapshot))
        return []

    def _submit(self, message: Submit) -> list[RequestDelta]:
        request = Request(
            request_id=message.request_id,
            prompt_token_ids=message.prompt_token_ids,
            params=message.params,
            seed=message.seed,
            eos_token_ids=message.eos_token_ids,
            priority=message.priority,
            cache_salt=message.cache_salt,
            arrival_s=self._clock(),
        )
        try:
            self._engine.add(request)
        except RequestError as error:
            return refusal(message.request_id, message.params.n, error)
        return []
