"""The endpoint, and what its readers see of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from octavo.core.types import TokenId
from octavo.metrics.live import Json
from octavo.metrics.snapshot import EngineChanges, RequestRow
from octavo.server.body import JsonRoute
from octavo.server.live.hub import Hub
from octavo.server.sse import stream_response
from octavo.server.state import ServerState
from octavo.server.stats import stats_of

router = APIRouter(route_class=JsonRoute)


@router.get("/stats/stream", response_model=None)
async def stats_stream(request: Request) -> Response:
    """Server-sent events: all that ``/stats`` and ``/stats/blocks`` tell, and then what changes."""
    hub: Hub = request.app.state.hub
    return await stream_response(request, hub.events())


def make_hub(state: ServerState) -> Hub:
    """The one hub of a server."""
    shows_text = state.config.observability.dashboard_show_text
    return Hub(state.engine, _Description(state), shows_text=shows_text)


class _Description:
    """What ``/stats`` says, with requests by their ids."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._arrivals: dict[str, float] = {}

    def __call__(self, changes: EngineChanges) -> Json:
        stats = stats_of(self._state, changes.snapshot)
        rows, stats.requests.rows = stats.requests.rows, ()
        state: Json = msgspec.to_builtins(stats)
        state["clock_s"] = round(changes.now_s, 3)
        arrivals = {row.id: changes.now_s - row.age_s for row in rows}
        self._arrivals = {name: self._arrivals.get(name, at) for name, at in arrivals.items()}
        state["requests"]["rows"] = {row.id: self._row(row) for row in rows}
        return state

    def _row(self, row: RequestRow) -> dict[str, Any]:
        shown: dict[str, Any] = msgspec.to_builtins(row)
        for name in ("id", "age_s", "prompt_head", "output_tail"):
            del shown[name]
        for name in ("queue_s", "first_token_s", "inter_token_s"):
            if shown[name] is not None:
                shown[name] = round(shown[name], 5)
        owner = self._state.owners.get(row.id.partition("#")[0])
        if owner is not None:
            shown["client"] = owner
        shown["arrived_s"] = round(self._arrivals[row.id], 3)
        if row.prompt_head:
            shown["prompt_head"] = self._text(row.prompt_head)
            shown["output_tail"] = self._text(row.output_tail)
        return shown

    def _text(self, token_ids: Sequence[TokenId]) -> str:
        return self._state.engine.tokenizer.decode(token_ids, skip_special_tokens=False)
