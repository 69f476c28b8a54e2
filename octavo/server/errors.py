"""From exceptions to HTTP: one table, and OpenAI's shape for every error body."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from octavo.core.errors import (
    CapacityError,
    ContextTooLong,
    EngineDead,
    EngineDraining,
    EngineError,
    ExecutorError,
    RequestError,
)

logger = logging.getLogger(__name__)


class Kind(NamedTuple):
    """How a class of errors looks over HTTP."""

    status: int
    type: str
    code: str | None = None


class UnknownModel(RequestError):
    """The request names a model that this server does not serve."""


TABLE: dict[type[EngineError], Kind] = {
    UnknownModel: Kind(404, "invalid_request_error", "model_not_found"),
    ContextTooLong: Kind(400, "invalid_request_error", "context_length_exceeded"),
    RequestError: Kind(400, "invalid_request_error"),
    CapacityError: Kind(503, "server_error", "capacity"),
    EngineDraining: Kind(503, "server_error", "shutting_down"),
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
    return Kind(500, "server_error")


def error_body(message: str, kind: Kind, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    clean = message.encode("utf-8", "replace").decode("utf-8")
    return {"error": {"message": clean, "type": kind.type, "param": param, "code": kind.code}}


def body_of(error: BaseException) -> dict[str, Any]:
    """The error object for an exception; what nobody foresaw is logged, not shown."""
    if isinstance(error, EngineError):
        return error_body(str(error), kind_of(error), getattr(error, "param", None))
    logger.error("unexpected error in a request", exc_info=error)
    return error_body("internal error: see the server's log", kind_of(error))


def json_response(body: Any, status: int = 200) -> Response:
    """A JSON response from anything that msgspec encodes."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def install(app: FastAPI) -> None:
    """Makes every error of the app come out in OpenAI's shape."""

    async def known(_request: Request, error: Exception) -> Response:
        return json_response(body_of(error), kind_of(error).status)

    async def invalid(_request: Request, error: Exception) -> Response:
        message, param = _first_problem(error)
        return json_response(error_body(message, TABLE[RequestError], param), 400)

    async def http(_request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        kind = TABLE[RequestError] if status < 500 else TABLE[EngineError]
        headers = getattr(error, "headers", None)
        response = json_response(
            error_body(str(getattr(error, "detail", error)), kind._replace(status=status)), status
        )
        response.headers.update(headers or {})
        return response

    app.add_exception_handler(EngineError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, known)


def _first_problem(error: Exception) -> tuple[str, str | None]:
    """(message, field) of the first of pydantic's complaints."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    if not problems:
        return str(error), None
    problem = problems[0]
    where = [str(part) for part in problem["loc"] if part != "body"]
    if problem["type"] == "json_invalid":
        reason = problem.get("ctx", {}).get("error", "")
        return f"the body is not valid JSON: {reason} at character {where[-1]}", None
    if problem["type"] == "extra_forbidden":
        return f"unknown parameter {'.'.join(where)!r}", ".".join(where)
    if problem["type"] == "missing" and not where:
        return "the body is empty: send a JSON object", None
    name = ".".join(where)
    return f"{name or 'body'}: {problem['msg']}", where[0] if where else None
