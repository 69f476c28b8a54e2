"""Questions to the engine about itself, and who waits for the answers."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

from octavo.core.errors import EngineError
from octavo.metrics.snapshot import EngineChanges, EngineSnapshot
from octavo.transport.messages import Inspect, Inspected, Watch, Watched

_Question: TypeAlias = tuple[object, ...]
_Found: TypeAlias = EngineSnapshot | EngineChanges
_Answer: TypeAlias = asyncio.Future[_Found | EngineError]


class Inspections:
    """Asks, and hands answers on. The same question is asked once, however many want to know: the
    engine answers between two steps, which take time."""

    def __init__(self, send: Callable[[Inspect | Watch], Awaitable[None]]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._open: dict[_Question, _Answer] = {}
        self._questions: dict[int, _Question] = {}

    async def ask(self, max_requests: int, first_block: int, num_blocks: int) -> EngineSnapshot:
        """Waits for the engine's answer. See `Inspect`.

        Raises:
            EngineError: the engine is gone.
        """
        found = await self._ask(Inspect, max_requests, first_block, num_blocks)
        return cast(EngineSnapshot, found)

    async def watch(
        self, max_requests: int, num_text_tokens: int, *, afresh: bool
    ) -> EngineChanges:
        """The same for `Watch`. One at a time: what an answer tells, no other one will."""
        found = await self._ask(Watch, max_requests, num_text_tokens, afresh)
        return cast(EngineChanges, found)

    async def _ask(self, kind: Callable[..., Inspect | Watch], *what: object) -> _Found:
        question = (kind, *what)
        answer = self._open.get(question)
        if answer is None:
            number = next(self._numbers)
            answer = self._open[question] = asyncio.get_running_loop().create_future()
            self._questions[number] = question
            await self._send(kind(number, *what))
        found = await asyncio.shield(answer)
        if isinstance(found, EngineError):
            raise copy.copy(found)
        return found

    def answered(self, message: Inspected | Watched) -> None:
        """The engine has answered."""
        question = self._questions.pop(message.number, None)
        if question is not None:
            found = message.snapshot if isinstance(message, Inspected) else message.changes
            self._open.pop(question).set_result(found)

    def fail_all(self, error: EngineError) -> None:
        """No answer will come to what has been asked so far."""
        open_, self._open = self._open, {}
        self._questions.clear()
        for answer in open_.values():
            answer.set_result(error)
