"""The one door that every request passes: it closes by default.

Pure ASGI, so that streams and their cancellation pass through untouched. A path is open to
everybody only if it is in `OPEN`, letter by letter; whatever else the router may make of a path
(double slashes, dots, encoded characters, other cases) asks for a key.
"""

from __future__ import annotations

from typing import NamedTuple

from fastapi import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.access.control import Access
from octavo.server.access.limits import Account, Refusal
from octavo.server.assets import assets
from octavo.server.errors import Kind, error_body, json_response, route_path

OPEN = frozenset({"/health", "/ping", *assets()})
METRICS = "/metrics"
STATS = frozenset({"/stats", "/stats/blocks", "/stats/stream"})
"""They tell of every tenant's requests: an admin's key opens them, and a key for metrics if there
is one; without that, any key does, unless tenants' caches are kept apart."""
_FREE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""They ask for no work: limits do not apply to them."""
_REALM = 'Bearer realm="octavo"'


class Guard:
    """Lets holders of keys in, each within its limits, and tells endpoints who they are.

    ``scope["state"]`` gets ``principal`` (`Principal`, for logs and metrics) and ``account``.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":  # nothing here speaks anything else
            await send({"type": "websocket.close", "code": 1008})
        elif (path := route_path(scope)) in OPEN:
            await self._app(scope, receive, send)
        elif path == METRICS or (path in STATS and self._access.hides_metrics):
            await self._metrics(scope, receive, send)
        elif not self._access.needs_key:
            await self._app(scope, receive, send)
        else:
            await self._guarded(scope, receive, send)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._access.hides_metrics:
            presented = _presented(scope)
            if presented.key is None or not self._opens(presented.key, route_path(scope)):
                await _unauthorized(presented, route_path(scope))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _opens(self, key: bytes, path: str) -> bool:
        """Whether a key opens what there is a key for metrics for."""
        account = self._access.account(key) if path in STATS else None
        is_admin = account is not None and account.principal.is_admin
        return is_admin or self._access.opens_metrics(key)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        presented = _presented(scope)
        account = None if presented.key is None else self._access.account(presented.key)
        if account is None:
            await _unauthorized(presented, route_path(scope))(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["account"], state["principal"] = account, account.principal
        is_foreign = self._access.isolates_caches and not account.principal.is_admin
        if is_foreign and route_path(scope) in STATS:
            await _forbidden()(scope, receive, send)
            return
        if scope["method"] in _FREE_METHODS:
            await self._app(scope, receive, send)
            return
        refusal = account.admit()
        if refusal is not None:
            await _too_many(refusal, account, route_path(scope))(scope, receive, send)
            return
        try:
            await self._app(scope, receive, _with_headers(send, account))
        finally:
            account.leave()


class _Presented(NamedTuple):
    """The key that a request came with, or why there is none."""

    key: bytes | None
    complaint: str = "the API key is none of this server's: check it"


def _presented(scope: Scope) -> _Presented:
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name not in (b"authorization", b"x-api-key"):
            continue
        if name in found:
            return _Presented(None, f"{name.decode()} stands there twice: send one API key")
        if name == b"authorization":
            scheme, _, value = value.partition(b" ")
            if scheme.lower() != b"bearer":
                return _Presented(None, "Authorization has another scheme: use Bearer")
        found[name] = value.strip(b" \t")
    keys = set(found.values())
    if len(keys) > 1:
        return _Presented(None, "Authorization and x-api-key have different keys: send one")
    if not keys or keys == {b""}:
        hint = "send Authorization: Bearer KEY, or x-api-key: KEY"
        return _Presented(None, f"there is no API key: {hint}")
    return _Presented(keys.pop())


def _unauthorized(presented: _Presented, path: str) -> Response:
    kind = Kind(401, "invalid_request_error", "invalid_api_key")
    response = json_response(error_body(presented.complaint, kind, path=path), kind.status)
    was_wrong = presented.key is not None
    response.headers["www-authenticate"] = _REALM + ', error="invalid_token"' * was_wrong
    return response


def _forbidden() -> Response:
    kind = Kind(403, "invalid_request_error", "forbidden")
    text = (
        "this tells of other tenants' requests, and caches are kept apart here (cache_isolation is "
        "key): use the key of an admin, or start the server with --metrics-key and use that key"
    )
    return json_response(error_body(text, kind), kind.status)


def _too_many(refusal: Refusal, account: Account, path: str) -> Response:
    kind = Kind(429, refusal.kind, "rate_limit_exceeded")
    response = json_response(error_body(refusal.message, kind, path=path), kind.status)
    response.headers["retry-after"] = str(refusal.retry_after_s)
    response.raw_headers += account.headers()
    return response


def _with_headers(send: Send, account: Account) -> Send:
    """Adds what is left of the account's limits to the answer, as of when it begins."""
    if not account.has_rates:
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *account.headers()]
        await send(message)

    return sending
