"""Lines of a batch: requests as the OpenAI API has them in its batch files, and their outcomes.

::

    {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": "hello"}}

    {"id": "batch_req_...", "custom_id": "a", "error": null,
     "response": {"status_code": 200, "request_id": "req_...", "body": {...}}}

A line that is no request, or a request that was not made, has an ``error`` and no ``response``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from octavo.core.errors import UnsupportedParameter
from octavo.server.body import decode_json
from octavo.server.errors import body_of, kind_of

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/score",
)
"""What a batch may ask for, where the application has it."""
CANCELLED = "batch_cancelled"
_FIELDS = frozenset({"custom_id", "method", "url", "body"})
_MAX_ID_CHARS = 512


class Request(NamedTuple):
    """A line that can be served."""

    custom_id: str
    url: str
    body: bytes
    """JSON."""


class Response(msgspec.Struct):
    """What the server answered."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class Fault(msgspec.Struct):
    """Why there is no answer."""

    code: str
    message: str


class Outcome(msgspec.Struct):
    """A line of the output."""

    id: str
    custom_id: str | None
    response: Response | None
    error: Fault | None

    @property
    def is_success(self) -> bool:
        """Whether the request was served."""
        return self.response is not None and 200 <= self.response.status_code < 300

    @property
    def is_final(self) -> bool:
        """Whether another try would have the same outcome, as far as one can tell."""
        status = 0 if self.response is None else self.response.status_code
        return 0 < status < 500 and status not in (408, 429)


def answered(custom_id: str, status: int, body: bytes) -> Outcome:
    """The outcome of a request that was made."""
    response = Response(status, f"req_{uuid.uuid4().hex}", msgspec.Raw(body))
    return Outcome(_new_id(), custom_id, response, None)


def failed(custom_id: str | None, code: str, message: str) -> Outcome:
    """The outcome of a line that no request was made of."""
    return Outcome(_new_id(), custom_id, None, Fault(code, message))


def cancelled(custom_id: str) -> Outcome:
    """The outcome of a request that was not made, or not to its end."""
    return failed(
        custom_id, CANCELLED, "the batch was ended before this request was served: resume it"
    )


def parse(number: int, raw: bytes, endpoints: Collection[str]) -> Request | Outcome:
    """Line ``number`` of the input as a request, or what is wrong with it.

    Args:
        endpoints: paths that the server has.
    """
    try:
        line = decode_json(raw)
    except Exception as error:
        reason = str(error).replace("the body", "the line")
        return failed(None, "invalid_json_line", f"line {number}: {reason}")
    if not isinstance(line, dict):
        return failed(None, "invalid_json_line", f"line {number}: use a JSON object")
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= _MAX_ID_CHARS:
        complaint = f"line {number}: custom_id must be text of 1 to {_MAX_ID_CHARS} characters"
        return failed(None, "invalid_custom_id", complaint)

    def refused(code: str, what: str) -> Outcome:
        return failed(custom_id, code, f"line {number}: {what}")

    unknown = sorted(line.keys() - _FIELDS)
    if unknown:
        return refused("unknown_field", f"{unknown[0]!r} is none of {', '.join(sorted(_FIELDS))}")
    if line.get("method") != "POST":
        return refused("invalid_method", f"method is {line.get('method')!r}: use POST")
    known = [path for path in ENDPOINTS if path in endpoints]
    if line.get("url") not in known:
        return refused("invalid_url", f"url is {line.get('url')!r}: use {' or '.join(known)}")
    body = line.get("body")
    if not isinstance(body, dict):
        return refused("invalid_body", "body must be a JSON object")
    if body.get("stream"):
        refusal = UnsupportedParameter(
            "stream is true, but a batch holds whole answers: leave it out", param="stream"
        )
        return answered(custom_id, kind_of(refusal).status, msgspec.json.encode(body_of(refusal)))
    return Request(custom_id, line["url"], json.dumps(body).encode())


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
