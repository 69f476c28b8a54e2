"""Makes the requests of a batch, so many at a time, until all are made or somebody ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import msgspec
from starlette.types import ASGIApp

from octavo.server.batch.asgi import Answer, post
from octavo.server.batch.lines import (
    CANCELLED,
    Outcome,
    Request,
    answered,
    cancelled,
    failed,
    parse,
)

_MAX_TRIES = 5
"""Of a request that the server refuses for the moment, as while its engine is started again."""


@dataclass(slots=True)
class Tally:
    """What has come of a batch so far."""

    num_done: int = 0
    num_failed: int = 0
    """Of those, without an answer or with an error."""
    num_cancelled: int = 0
    """Not among those that are done."""
    prompt_tokens: int = 0
    output_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    input_tokens: int = 0
    completion_tokens: int = 0
    output_tokens: int = 0


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class BatchRunner:
    """One batch over one application.

    Args:
        done: ids of requests that need not be made.
        on_outcome: told of each outcome, in the order in which they come.
    """

    def __init__(
        self,
        app: ASGIApp,
        endpoints: Collection[str],
        on_outcome: Callable[[Outcome], None],
        *,
        done: Collection[str] = (),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.tally = Tally()
        self._app = app
        self._endpoints = endpoints
        self._on_outcome = on_outcome
        self._done = done
        self._sleep = sleep
        self._seen: set[str] = set()
        self._workers: list[asyncio.Task[None]] = []
        self._ended = False

    async def run(self, lines: Iterable[tuple[int, bytes]], num_at_once: int) -> Tally:
        """Deals with all lines; after `end`, the rest of them is cancelled without being made.

        Raises:
            Exception: whatever ``lines`` or ``on_outcome`` raise; everything in flight is ended.
        """
        wanted = self._wanted(lines)
        self._workers = [asyncio.create_task(self._work(wanted)) for _ in range(num_at_once)]
        try:
            for found in await asyncio.gather(*self._workers, return_exceptions=True):
                if isinstance(found, Exception):
                    raise found
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
        for request in wanted:
            self._take(cancelled(request.custom_id))
        return self.tally

    def end(self) -> None:
        """Ends what is in flight, and makes no more requests."""
        self._ended = True
        for worker in self._workers:
            worker.cancel()

    def _wanted(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[Request]:
        """Requests to make. Lines that are none are dealt with on the way."""
        for number, raw in lines:
            found = parse(number, raw, self._endpoints)
            name = found.custom_id
            if name is not None and name in self._seen:
                text = f"line {number}: an earlier line has this custom_id"
                found = failed(name, "duplicate_custom_id", text)
            elif name is not None:
                self._seen.add(name)
                if name in self._done:
                    continue
            if isinstance(found, Request):
                yield found
            else:
                self._take(found)

    async def _work(self, wanted: Iterator[Request]) -> None:
        for request in wanted:
            try:
                answer = await self._answer(request)
            except asyncio.CancelledError:
                self._take(cancelled(request.custom_id))
                raise
            self._take(answered(request.custom_id, answer.status, answer.body))
            if self._ended:
                return

    async def _answer(self, request: Request) -> Answer:
        for _ in range(_MAX_TRIES - 1):
            answer = await post(self._app, request.url, request.body)
            wait_s = answer.headers.get("retry-after", "")
            if answer.status not in (429, 503) or not wait_s.isdecimal():
                return answer
            await self._sleep(int(wait_s))
        return await post(self._app, request.url, request.body)

    def _take(self, outcome: Outcome) -> None:
        tally = self.tally
        if outcome.error is not None and outcome.error.code == CANCELLED:
            tally.num_cancelled += 1
        else:
            tally.num_done += 1
            tally.num_failed += not outcome.is_success
        if outcome.is_success and outcome.response is not None:
            usage = msgspec.json.decode(outcome.response.body, type=_Body).usage or _Usage()
            tally.prompt_tokens += usage.prompt_tokens or usage.input_tokens
            tally.output_tokens += usage.completion_tokens or usage.output_tokens
        self._on_outcome(outcome)
