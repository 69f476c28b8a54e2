"""From ``response_format`` or ``structured_outputs`` to the form that the output must have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from octavo.core.errors import InvalidParameter
from octavo.core.params import Structured
from octavo.server.openai.schemas import ResponseFormat, SamplingBody, StructuredOutputs


def wanted_form(body: SamplingBody) -> Structured | None:
    """What the output must look like, if the client says so.

    Raises:
        InvalidParameter: both parameters say something, or one contradicts itself.
    """
    with _blaming("response_format"):
        by_format = _of_format(body.response_format)
    with _blaming("structured_outputs"):
        by_outputs = _of_outputs(body.structured_outputs)
    if by_format is not None and by_outputs is not None:
        raise InvalidParameter(
            "response_format and structured_outputs both ask for a form of the output: send one",
            param="structured_outputs",
        )
    return by_format or by_outputs


@contextmanager
def _blaming(param: str) -> Iterator[None]:
    try:
        yield
    except InvalidParameter as error:
        error.param = param
        raise


def _of_format(given: ResponseFormat | None) -> Structured | None:
    if given is None or given.type == "text":
        if given is not None and given.json_schema is not None:
            raise InvalidParameter(
                "response_format has a json_schema, but its type is 'text': use 'json_schema'"
            )
        return None
    schema = given.json_schema
    if given.type == "json_object":
        if schema is not None:
            raise InvalidParameter(
                "response_format has a json_schema, but its type is 'json_object': use "
                "'json_schema'"
            )
        return Structured.json()
    if schema is None:
        raise InvalidParameter("response_format is of type 'json_schema', but has no json_schema")
    return Structured.json(schema.schema_)


def _of_outputs(given: StructuredOutputs | None) -> Structured | None:
    if given is None:
        return None
    named = {
        "json": given.json_,
        "regex": given.regex,
        "choice": given.choice,
        "grammar": given.grammar,
        "json_object": given.json_object or None,
    }
    found = [name for name, value in named.items() if value is not None]
    if len(found) != 1:
        said = f"says {' and '.join(found)}" if found else "says nothing"
        raise InvalidParameter(f"structured_outputs {said}: give exactly one of {', '.join(named)}")
    return _MAKERS[found[0]](named[found[0]])


def _json(schema: Any) -> Structured:
    if isinstance(schema, str):
        try:
            json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidParameter(f"structured_outputs.json is no valid JSON: {error}") from None
    return Structured.json(schema)


_MAKERS: dict[str, Callable[[Any], Structured]] = {
    "json": _json,
    "regex": Structured.regex,
    "choice": Structured.choice,
    "grammar": Structured.grammar,
    "json_object": lambda _: Structured.json(),
}
