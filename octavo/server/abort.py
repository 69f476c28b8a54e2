"""``POST /requests/{id}/abort``: ends a request that somebody else waits for."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from octavo.core.types import RequestId
from octavo.server.access.limits import Principal
from octavo.server.body import JsonRoute
from octavo.server.errors import ForeignRequest, UnknownRequest, json_response
from octavo.server.state import ServerState

router = APIRouter(route_class=JsonRoute)


class Aborted(msgspec.Struct):
    """What has been ended."""

    aborted: list[RequestId]
    """As in the statistics: one for each prompt."""


@router.post("/requests/{request_id:path}/abort", response_model=None)
async def abort(request_id: str, request: Request) -> Response:
    """Ends a request; whoever waits for it gets what there is, with the finish reason ``abort``.

    The id is that of an answer, or of a row of ``/stats``. With API keys, a request can be ended by
    the holder of a key of its tenant, and by an admin.
    """
    state: ServerState = request.app.state.server
    names = state.engine.names_of(request_id)
    if not names:
        raise UnknownRequest(f"no request {request_id!r} is in flight: it has ended, or never was")
    principal: Principal | None = request.scope.get("state", {}).get("principal")
    _check_owner(state, names, principal)
    for name in names:
        await state.engine.abort(name)
    return json_response(Aborted(names))


def _check_owner(state: ServerState, names: list[RequestId], principal: Principal | None) -> None:
    if not state.access.needs_key or (principal is not None and principal.is_admin):
        return
    mine = None if principal is None else principal.name
    if any(state.owners.get(name) != mine for name in names):
        raise ForeignRequest(
            f"request {names[0]!r} was sent with another API key: use that key, or an admin's"
        )
