"""From exceptions to HTTP: one table, and the shape that clients of each API expect.

Nothing that a client sends may end in a 500, and nothing that nobody foresaw is shown to a client:
it is logged, and answered with one fixed sentence.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import Scope

from octavo.core.errors import (
    CapacityError,
    ContextTooLong,
    EngineDead,
    EngineDraining,
    EngineError,
    EngineRestarting,
    ExecutorError,
    Overloaded,
    RequestError,
    RequestTimeout,
    UnsupportedParameter,
)

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 2000
"""Characters of an error message; what a client sent may be quoted in it at any length."""


class Kind(NamedTuple):
    """How a class of errors looks over HTTP."""

    status: int
    type: str
    code: str | None = None


class UnknownModel(RequestError):
    """The request names a model that this server does not serve."""


class UnknownParameter(RequestError):
    """The request has a field that no version of the API has."""


class UnknownRequest(RequestError):
    """No request in flight has this id."""


class ForeignRequest(RequestError):
    """The request is that of another tenant."""


class BodyTooLarge(RequestError):
    """The request's body is larger than any that could be served."""


TABLE: dict[type[EngineError], Kind] = {
    UnknownModel: Kind(404, "invalid_request_error", "model_not_found"),
    UnknownRequest: Kind(404, "invalid_request_error", "request_not_found"),
    ForeignRequest: Kind(403, "invalid_request_error", "forbidden"),
    UnknownParameter: Kind(400, "invalid_request_error", "unknown_parameter"),
    UnsupportedParameter: Kind(400, "invalid_request_error", "unsupported_parameter"),
    BodyTooLarge: Kind(413, "invalid_request_error", "request_too_large"),
    ContextTooLong: Kind(400, "invalid_request_error", "context_length_exceeded"),
    RequestError: Kind(400, "invalid_request_error"),
    CapacityError: Kind(503, "server_error", "capacity"),
    EngineDraining: Kind(503, "server_error", "shutting_down"),
    Overloaded: Kind(429, "rate_limit_error", "queue_full"),
    RequestTimeout: Kind(504, "timeout_error", "request_timeout"),
    EngineRestarting: Kind(503, "server_error", "engine_restarting"),
    EngineDead: Kind(503, "server_error", "engine_dead"),
    ExecutorError: Kind(500, "server_error"),
    EngineError: Kind(500, "server_error"),
}
"""The entry of the nearest base class counts."""

_NAME = re.compile(r"(\w*)(.*)", re.DOTALL)
_MESSAGES = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Names of errors in Anthropic's API, by status."""


def kind_of(error: BaseException) -> Kind:
    """The table's entry for an exception; unknown ones are the server's fault."""
    for base in type(error).__mro__:
        if base in TABLE:
            return TABLE[base]
    return TABLE[EngineError]


def error_body(
    message: str, kind: Kind, param: str | None = None, *, path: str = ""
) -> dict[str, Any]:
    """The error object in the shape of the API that ``path`` belongs to: Anthropic's below
    ``/v1/messages``, and OpenAI's. Text that is no valid Unicode is made so, and long text is cut.
    """
    if path.startswith(_MESSAGES):
        name = _ANTHROPIC_TYPES.get(kind.status)
        name = name or ("invalid_request_error" if kind.status < 500 else "api_error")
        if param is not None and param.partition(".")[0].partition("[")[0] not in message:
            message = f"{param}: {message}"  # that API has no other place for it
        return {"type": "error", "error": {"type": name, "message": _shown(message)}}
    return {
        "error": {
            "message": _shown(message),
            "type": kind.type,
            "param": None if param is None else _shown(param),
            "code": kind.code,
        }
    }


def body_of(error: BaseException, *, path: str = "") -> dict[str, Any]:
    """The error object for an exception; what nobody foresaw is logged, not shown."""
    kind = kind_of(error)
    if isinstance(error, EngineError):
        return error_body(str(error), kind, getattr(error, "param", None), path=path)
    logger.error("unexpected error in a request", exc_info=error)
    return error_body("internal error: see the server's log", kind, path=path)


def error_response(error: BaseException, *, path: str = "") -> Response:
    """The whole answer for an exception."""
    response = json_response(body_of(error, path=path), kind_of(error).status)
    response.headers.update(retry_after(error))
    return response


def renamed(error: Exception, names: Mapping[str, str]) -> Exception:
    """The same error, about a parameter that the client knows by another name."""
    if not isinstance(error, RequestError) or error.param is None:
        return error
    name, rest = _NAME.fullmatch(error.param).groups()  # type: ignore[union-attr]
    if name not in names:
        return error
    message = re.sub(rf"\b{name}\b", lambda _: names[name], str(error))
    return type(error)(message, param=names[name] + rest)


def retry_after(error: BaseException) -> dict[str, str]:
    """The header that says when to try again, if the error knows."""
    seconds = error.retry_after_s if isinstance(error, EngineError) else None
    return {} if seconds is None else {"Retry-After": str(math.ceil(seconds))}


def route_path(scope: Scope) -> str:
    """The path as the router sees it: without the root path, if it begins with that."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root) and path[len(root) :][:1] in ("", "/"):
        return path[len(root) :]
    return path


def json_response(body: Any, status: int = 200) -> Response:
    """A JSON response from anything that msgspec encodes."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def install(app: FastAPI) -> None:
    """Makes what the framework itself refuses come out in OpenAI's shape too."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class alone
        status = error.status_code
        kind = Kind(status, (TABLE[RequestError] if status < 500 else TABLE[EngineError]).type)
        path = route_path(request.scope)
        response = json_response(error_body(_refusal(request, error), kind, path=path), status)
        response.headers.update(error.headers or {})
        return response

    async def unforeseen(request: Request, error: Exception) -> Response:
        return error_response(error, path=route_path(request.scope))

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(Exception, unforeseen)


def _refusal(request: Request, error: HTTPException) -> str:
    route = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return f"{route} does not exist here: see /docs for what does"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow")
        return f"{route} is not possible" + (f": use {allowed}" if allowed else "")
    return str(error.detail)


def _shown(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= _MAX_MESSAGE else f"{clean[: _MAX_MESSAGE - 1]}…"
