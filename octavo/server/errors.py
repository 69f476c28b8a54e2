"""From exceptions to HTTP: one table, and OpenAI's shape for every error body.

Nothing that a client sends may end in a 500, and nothing that nobody foresaw is shown to a client:
it is logged, and answered with one fixed sentence.
"""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

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


def kind_of(error: BaseException) -> Kind:
    """The table's entry for an exception; unknown ones are the server's fault."""
    for base in type(error).__mro__:
        if base in TABLE:
            return TABLE[base]
    return TABLE[EngineError]


def error_body(message: str, kind: Kind, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object. Text that is no valid Unicode is made so, and long text is cut."""
    return {
        "error": {
            "message": _shown(message),
            "type": kind.type,
            "param": None if param is None else _shown(param),
            "code": kind.code,
        }
    }


def body_of(error: BaseException) -> dict[str, Any]:
    """The error object for an exception; what nobody foresaw is logged, not shown."""
    if isinstance(error, EngineError):
        return error_body(str(error), kind_of(error), getattr(error, "param", None))
    logger.error("unexpected error in a request", exc_info=error)
    return error_body("internal error: see the server's log", kind_of(error))


def error_response(error: BaseException) -> Response:
    """The whole answer for an exception."""
    response = json_response(body_of(error), kind_of(error).status)
    response.headers.update(retry_after(error))
    return response


def retry_after(error: BaseException) -> dict[str, str]:
    """The header that says when to try again, if the error knows."""
    seconds = error.retry_after_s if isinstance(error, EngineError) else None
    return {} if seconds is None else {"Retry-After": str(math.ceil(seconds))}


def json_response(body: Any, status: int = 200) -> Response:
    """A JSON response from anything that msgspec encodes."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def install(app: FastAPI) -> None:
    """Makes what the framework itself refuses come out in OpenAI's shape too."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class alone
        status = error.status_code
        kind = Kind(status, (TABLE[RequestError] if status < 500 else TABLE[EngineError]).type)
        response = json_response(error_body(_refusal(request, error), kind), status)
        response.headers.update(error.headers or {})
        return response

    async def unforeseen(_request: Request, error: Exception) -> Response:
        return error_response(error)

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
