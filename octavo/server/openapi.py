"""``/openapi.json``: what requests may hold, and every answer that may come, with its form.

The framework knows the forms of requests; this adds those of answers, from the structures that
encode them, and the limits of parameters that are checked when all of a request is known. Whoever
adds an endpoint adds a line to `ANSWERS`; a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from octavo.core.params import MAX_BAD_WORDS, MAX_N, MAX_SEED, MAX_STOP_STRINGS
from octavo.metrics.registry import CONTENT_TYPE
from octavo.server.abort import Aborted
from octavo.server.access.guard import METRICS, OPEN, STATS
from octavo.server.anthropic.answers import AnthropicMessage, StreamEvent, TokensCount
from octavo.server.openai.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Detokenized,
    Model,
    ModelList,
    Tokenized,
)
from octavo.server.openai.responses import EmbeddingList, ScoreList
from octavo.server.openai_responses.bodies import Response, ResponsesEvent
from octavo.server.state import ServerState
from octavo.server.stats import Blocks, Stats

_JSON = "application/json"
_EVENTS = "text/event-stream"
_REF = "#/components/schemas/{name}"
_MAX_INT = 2**31 - 1


class ErrorDetail(msgspec.Struct):
    """What went wrong, with the numbers, and what to do about it."""

    message: str
    type: str
    param: str | None
    """The parameter at fault, if there is one."""
    code: str | None


class Error(msgspec.Struct):
    """Every answer that is no success."""

    error: ErrorDetail


class AnthropicErrorDetail(msgspec.Struct):
    """What went wrong, with the numbers, and what to do about it."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, tag="error"):
    """Every answer of the Messages API that is no success."""

    error: AnthropicErrorDetail


class Health(msgspec.Struct, omit_defaults=True):
    """Answer of ``/health``."""

    status: str
    engine_restarts: int
    error: ErrorDetail | None = None


class Version(msgspec.Struct):
    """Answer of ``/version``."""

    version: str


class Answer(NamedTuple):
    """What an endpoint answers if all is well."""

    body: type | None
    """A structure, as JSON; None for plain text."""
    events: tuple[type, ...] = ()
    """What the JSON of an event may be if the answer is a stream, or may be one."""
    text: str | None = None
    """The content type of an answer that is no JSON."""
    errors: tuple[int, ...] = ()
    """Statuses that only this endpoint has."""
    error: type = Error
    """The form of everything that is no success."""
    is_marked: bool = False
    """Whether streams end with a mark of their own."""


_HEALTH = Answer(Health, errors=(503,), error=Health)
ANSWERS = {
    "/health": _HEALTH,
    "/ping": _HEALTH,
    "/version": Answer(Version),
    "/metrics": Answer(None, text=CONTENT_TYPE),
    "/stats": Answer(Stats, errors=(503, 504)),
    "/stats/blocks": Answer(Blocks, errors=(503, 504)),
    "/stats/stream": Answer(None, (dict,), errors=(503, 504)),
    "/requests/{request_id}/abort": Answer(Aborted, errors=(404,)),
    "/v1/models": Answer(ModelList),
    "/v1/models/{name}": Answer(Model, errors=(404,)),
    "/v1/chat/completions": Answer(ChatCompletion, (ChatCompletionChunk,), is_marked=True),
    "/v1/completions": Answer(Completion, (Completion,), is_marked=True),
    "/v1/responses": Answer(Response, (ResponsesEvent,)),
    "/v1/messages": Answer(AnthropicMessage, get_args(StreamEvent), error=AnthropicError),
    "/v1/messages/count_tokens": Answer(TokensCount, error=AnthropicError),
    "/v1/embeddings": Answer(EmbeddingList),
    "/v1/score": Answer(ScoreList),
    "/score": Answer(ScoreList),
    "/tokenize": Answer(Tokenized),
    "/detokenize": Answer(Detokenized),
}
"""By path, as the document writes it."""

_ERRORS = {
    400: "The request cannot be served as it is; the message says why, and what to send instead.",
    401: "There is no API key, or one that this server does not know.",
    403: "It concerns what another API key has sent.",
    404: "There is no such model or request.",
    413: "The body is larger than this server takes.",
    429: "Too much waits, or the API key has used what it may: Retry-After says when to try again.",
    500: "The engine failed while it computed this request.",
    503: "The engine is gone, being started again, or about to leave.",
    504: "The request was not done by its deadline.",
}
_OF_WORK = (404, 413, 429, 500, 503, 504)
"""Statuses of requests with a body."""

Limits = dict[str, Any]


def _range(low: float | None, high: float | None) -> Limits:
    limits = {"minimum": low, "maximum": high}
    return {name: value for name, value in limits.items() if value is not None}


def _limits(state: ServerState) -> dict[str, dict[str, Limits]]:
    """What is checked beside the types of fields, by body and field; a body without such a field is
    free of its limit. A test holds each of them against the server."""
    spec = state.engine.info.spec
    tokens = {"items": {"type": "integer", **_range(0, spec.vocab_size - 1)}}
    alternatives = _range(0, state.config.max_logprobs)
    longest_s = state.config.request_timeout_s
    timeout = {} if longest_s is None else {"timeout": _range(None, longest_s)}
    sampling: dict[str, Limits] = {
        **timeout,
        "allowed_token_ids": {"minItems": 1, **tokens},
        "bad_words": {"maxItems": MAX_BAD_WORDS},
        "best_of": _range(1, MAX_N),
        "frequency_penalty": _range(-2, 2),
        "logit_bias": {"additionalProperties": {"type": "number", **_range(-100, 100)}},
        "logprobs": alternatives,
        "max_completion_tokens": _range(1, None),
        "max_tokens": _range(0, None),
        "min_p": _range(0, 1),
        "min_tokens": _range(0, None),
        "n": _range(1, MAX_N),
        "presence_penalty": _range(-2, 2),
        "prompt_logprobs": alternatives,
        "repetition_penalty": _range(0.01, 10),
        "seed": _range(-MAX_SEED - 1, MAX_SEED),
        "stop": {"maxItems": MAX_STOP_STRINGS},
        "stop_token_ids": tokens,
        "temperature": _range(0, 100),
        "top_k": _range(-1, _MAX_INT),
        "top_logprobs": alternatives,
        "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    }
    return {
        "CompletionRequest": sampling,
        "ChatCompletionRequest": {
            **sampling,
            "logprobs": {},
            "max_tokens": _range(1, None),
            "messages": {"minItems": 1},
        },
        "ResponsesRequest": {**sampling, "max_output_tokens": _range(1, None)},
        "MessagesRequest": {
            **sampling,
            "max_tokens": _range(1, None),
            "messages": {"minItems": 1},
            "stop_sequences": {"maxItems": MAX_STOP_STRINGS},
        },
        "CountTokensRequest": {"messages": {"minItems": 1}},
        "EmbeddingRequest": {
            **timeout,
            "dimensions": _range(spec.hidden_size, spec.hidden_size),
        },
        "ScoreRequest": timeout,
        "DetokenizeRequest": {"tokens": tokens},
    }


def install(app: FastAPI) -> None:
    """Makes the application describe its answers."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # such complaints get 400 here
        schemas.pop(name, None)
    for body, limits in _limits(app.state.server).items():
        fields = schemas.get(body, {}).get("properties", {})
        for name, limit in limits.items():
            if name in fields:
                fields[name] |= limit
    answers = ANSWERS.values()
    kinds = {kind for answer in answers for kind in (answer.body, answer.error, *answer.events)}
    structs = [kind for kind in kinds if kind not in (None, dict)]
    structs.sort(key=lambda kind: kind.__name__)
    schemas |= msgspec.json.schema_components(structs, ref_template=_REF)[1]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"] = dict(_responses(path, operation, ANSWERS[path]))
    return document


def _responses(
    path: str, operation: dict[str, Any], answer: Answer
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(status, response) of an operation."""
    yield "200", {"description": "Success.", "content": _content(answer)}
    statuses = set(answer.errors)
    if "parameters" in operation or "requestBody" in operation:
        statuses.add(400)
    if "requestBody" in operation:
        statuses.update(_OF_WORK)
    if path not in OPEN:
        statuses.add(401)
    if path in STATS or path == METRICS or path.startswith("/requests/"):
        statuses.add(403)
    if path.startswith("/requests/"):
        statuses.add(429)
    schema = {"$ref": _REF.format(name=answer.error.__name__)}
    for status in sorted(statuses):
        response: dict[str, Any] = {
            "description": _ERRORS[status],
            "content": {_JSON: {"schema": schema}},
        }
        if status in (429, 503):
            response["headers"] = {
                "Retry-After": {
                    "description": "Seconds until another try makes sense.",
                    "schema": {"type": "integer", "minimum": 0},
                }
            }
        yield str(status), response


def _content(answer: Answer) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if answer.body is not None:
        content[_JSON] = {"schema": {"$ref": _REF.format(name=answer.body.__name__)}}
    if answer.events:
        data: dict[str, Any] = {"type": "string", "contentMediaType": _JSON}
        if dict not in answer.events:
            kinds = (*answer.events, answer.error)
            forms = [{"$ref": _REF.format(name=kind.__name__)} for kind in kinds]
            data["contentSchema"] = {"anyOf": forms}
        if answer.is_marked:
            data = {"anyOf": [{"const": "[DONE]"}, data]}
        content[_EVENTS] = {
            "schema": {
                "description": "Each server-sent event.",
                "type": "object",
                "properties": {"data": data},
                "required": ["data"],
            }
        }
    if answer.text is not None:
        content[answer.text] = {"schema": {"type": "string"}}
    return content
