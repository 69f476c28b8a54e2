"""One HTTP request that asks for work, as the request log and traces tell of it.

Filled while the request is served; no text of a prompt or an answer ever gets here.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from octavo.core.params import SamplingParams
from octavo.core.types import TokenId
from octavo.front.async_engine import AsyncEngine
from octavo.front.outputs import CompletionDelta, RequestOutput, RequestSummary

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?P<trace>(?!0{32})[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class Part(NamedTuple):
    """One prompt of the request, in the engine."""

    arrival: float
    """When the engine was asked, in seconds since the epoch."""
    params: SamplingParams
    summary: RequestSummary


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """A request from its first byte to the last of its answer."""

    method: str
    path: str
    """As in the routing table."""
    arrival: float
    """In seconds since the epoch."""
    address: str | None
    """Where the client is."""
    headers: Sequence[tuple[bytes, bytes]]
    client: str | None = None
    """Name of the API key."""
    model: str | None = None
    status: int = 0
    total_s: float = 0.0
    trace_id: str | None = None
    """Of the trace that tells of it, or of the caller's."""
    parts: list[Part] = field(default_factory=list)

    def add(self, params: SamplingParams, summary: RequestSummary) -> None:
        """The engine has dealt with a prompt; called when that is so."""
        self.parts.append(Part(time.time() - summary.closed_s, params, summary))

    @property
    def id(self) -> str | None:
        """What the answer is called; None if the engine was not asked."""
        if not self.parts:
            return None
        name = self.parts[0].summary.request_id
        head, _, number = name.rpartition("-")
        return head if head and number.isdecimal() else name

    def caller_trace_id(self) -> str | None:
        """The trace that the request says it belongs to (W3C ``traceparent``)."""
        found = _TRACEPARENT.match(self.header(b"traceparent") or "")
        return found["trace"] if found else None

    def header(self, name: bytes) -> str | None:
        """The first header of this lower-case name."""
        found = next((value for key, value in self.headers if key == name), None)
        return None if found is None else found.decode("latin-1")


class Sink(Protocol):
    """Whoever keeps records."""

    def record(self, record: RequestRecord) -> None:
        """Takes in a request that has been answered, or whose client has left; must not block."""

    def close(self) -> None:
        """Brings everything to where it belongs; may take a few seconds."""


class RecordedEngine:
    """Answers whatever an `AsyncEngine` answers, and notes what became of each request."""

    def __init__(self, engine: AsyncEngine, record: RequestRecord) -> None:
        self._engine = engine
        self._record = record

    def __getattr__(self, name: str) -> Any:
        """What is no request is the engine's own."""
        return getattr(self._engine, name)

    def generate(
        self, prompt_token_ids: Sequence[TokenId], params: SamplingParams, **options: Any
    ) -> AsyncIterator[list[CompletionDelta]]:
        """See `AsyncEngine.generate`."""
        note = partial(self._record.add, params)
        return self._engine.generate(prompt_token_ids, params, **options, on_end=note)

    async def complete(
        self, prompt_token_ids: Sequence[TokenId], params: SamplingParams, **options: Any
    ) -> RequestOutput:
        """See `AsyncEngine.complete`."""
        note = partial(self._record.add, params)
        return await self._engine.complete(prompt_token_ids, params, **options, on_end=note)
