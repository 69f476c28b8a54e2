"""Request bodies: bytes of a client to JSON values, with an error that says what is wrong.

`JsonRoute` is the route class of every endpoint: it reads the body by these rules, and turns every
exception that an endpoint raises into its answer. The types of fields are `openai/schemas`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from email.message import Message
from typing import Any, ClassVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from octavo.core.errors import InvalidParameter
from octavo.server.complaints import complaint
from octavo.server.errors import BodyTooLarge, error_response, renamed
from octavo.server.sse import ClientGone
from octavo.server.state import state_of

_CLIENT_CLOSED_REQUEST = 499  # what proxies log for a client that left; nobody reads it


class _ReadRequest(Request):
    """A request whose body has been read and decoded."""

    raw: bytes
    value: Any

    async def body(self) -> bytes:
        """The body."""
        return self.raw

    async def json(self) -> Any:
        """The body's value."""
        return self.value


class JsonRoute(APIRoute):
    """A route with a JSON body, or none, that answers every error in its API's shape."""

    names: ClassVar[Mapping[str, str]] = {}
    """What parameters are called here, where that is not what the code behind calls them."""

    def error_response(self, error: Exception) -> Response:
        """The answer for an exception."""
        return error_response(renamed(error, self.names), path=self.path)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute.get_route_handler`."""
        handler = super().get_route_handler()
        has_body = self.body_field is not None

        async def handle(request: Request) -> Response:
            try:
                return await handler(await _read(request) if has_body else request)
            except RequestValidationError as error:
                return self.error_response(complaint(error))
            except (ClientGone, ClientDisconnect):
                return Response(status_code=_CLIENT_CLOSED_REQUEST)
            except Exception as error:
                return self.error_response(error)

        return handle


async def _read(request: Request) -> Request:
    _check_content_type(request.headers.get("content-type"))
    limit = state_of(request).config.limits.max_request_bytes
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(f"{announced} bytes", limit)
    chunks, size = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise _too_large("larger", limit)
    read = _ReadRequest(request.scope, request.receive)
    read.raw = b"".join(chunks)
    read.value = decode_json(read.raw)
    return read


def _too_large(what: str, limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is {what}, but this server takes {limit} bytes: send less")


def decode_json(raw: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        InvalidParameter: it is none: empty, malformed, no UTF-8, nested too deep, or with numbers
            or characters that JSON does not have.
    """
    if not raw.strip():
        raise InvalidParameter("the body is empty: send a JSON object")
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidParameter(f"the body is not valid JSON: {error}") from None


def _check_content_type(value: str | None) -> None:
    message = Message()
    message["content-type"] = value or "none"
    kind = message.get_content_type()
    is_json = kind.startswith("application/") and kind.rpartition("/")[2].split("+")[-1] == "json"
    if not is_json:
        raise InvalidParameter(
            f"the body's content type is {value or 'missing'}: send JSON, with "
            "Content-Type: application/json"
        )
    charset = message.get_content_charset("utf-8").lower()
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise InvalidParameter(f"the body's charset is {charset!r}: JSON is UTF-8")
