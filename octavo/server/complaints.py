"""What pydantic has to say about a request, in the words of this API."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, LiteralString

from fastapi.exceptions import RequestValidationError
from pydantic_core import PydanticCustomError

from octavo.core.errors import InvalidParameter, RequestError, UnsupportedParameter
from octavo.server.errors import UnknownParameter

_UNKNOWN = "unknown_parameter"
_UNSUPPORTED = "unsupported_parameter"
UNSUPPORTED = "is not supported by this server: leave it out"
"""What is said of a parameter that is not offered."""

TAG = "~"
"""First character of the union tags in schemas; no part of a field's name."""

_WANTED = {
    "bool_type": "use true or false",
    "dict_type": "use an object",
    "float_type": "use a number",
    "finite_number": "use a finite number",
    "int_parsing": "use a whole number",
    "int_type": "use a whole number",
    "list_type": "use a list",
    "model_attributes_type": "use an object",
    "model_type": "use an object",
    "string_type": "use a string",
    "string_unicode": "use text without lone surrogates",
}
_LIMITS = {
    "greater_than": "use more than {gt:g}",
    "greater_than_equal": "use {ge} or more",
    "int_from_float": "use a whole number",
    "int_parsing_size": "use a smaller number",
    "less_than": "use less than {lt:g}",
    "less_than_equal": "use {le:.15g} or less",
    "literal_error": "use {expected}",
    "string_pattern_mismatch": "use text that matches {pattern}",
    "string_too_long": "use {max_length} characters at most",
    "string_too_short": "use {min_length} characters or more",
    "too_long": "use {max_length} items at most",
    "too_short": "use {min_length} items or more",
}
"""With what pydantic tells of the limit."""

_PLACES = ("body", "query", "path")
"""Where a parameter stands; its name says enough."""

_SHOWN_CHARACTERS = 60


def complaint(error: RequestValidationError) -> RequestError:
    """The first of the problems, as an error of ours that names the field and the remedy."""
    problem = error.errors()[0]
    kind, where = problem["type"], _path(problem["loc"])
    context = problem.get("ctx") or {}
    if kind == "missing":
        return InvalidParameter(f"{where or 'the body'} is missing", param=where or None)
    if kind in (_UNKNOWN, _UNSUPPORTED):
        name = ".".join(part for part in (where, context["name"]) if part)
        raised = UnknownParameter if kind == _UNKNOWN else UnsupportedParameter
        return raised(f"{name} {context['what']}", param=name)
    limit = _LIMITS.get(kind)
    wanted = limit.format(**context) if limit else _WANTED.get(kind) or problem["msg"]
    return InvalidParameter(
        f"{where or 'the body'} is {_shown(problem.get('input'))}: {wanted}", param=where or None
    )


def unknown(name: str, known: Iterable[str]) -> PydanticCustomError:
    """To raise in a schema for a field that no version of the API has."""
    close = difflib.get_close_matches(name, list(known), n=2)
    hint = f": did you mean {' or '.join(close)}?" if close else ""
    return _error(_UNKNOWN, name, f"is no parameter of this API{hint}")


def unsupported(name: str, what: str = UNSUPPORTED) -> PydanticCustomError:
    """To raise in a schema for what the API has and this server does not offer."""
    return _error(_UNSUPPORTED, name, what)


def _error(kind: LiteralString, name: str, what: str) -> PydanticCustomError:
    return PydanticCustomError(kind, "{what}", {"name": name, "what": what})


def _path(loc: Sequence[int | str]) -> str:
    """``messages[0].content`` from pydantic's location."""
    text = ""
    for part in loc[1:] if loc and loc[0] in _PLACES else loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not part.startswith(TAG):
            text += f".{part}" if text else part
    return text


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    if len(text) > _SHOWN_CHARACTERS:
        text = f"{text[: _SHOWN_CHARACTERS - 1]}…"
    return text
