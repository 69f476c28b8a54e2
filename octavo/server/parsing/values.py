"""What a value that is written without quotes is as JSON, by the schema it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Place: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A schema, and the whole one in which its references point to something."""

_NAMES = {str: "string", bool: "boolean", type(None): "null", list: "array", dict: "object"}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_MAX_DEPTH = 16


def is_text(place: Place) -> bool:
    """Whether values are strings and nothing else."""
    return json_types(place) == frozenset({"string"})


def json_value(place: Place, text: str) -> str:
    """The JSON of a value: ``text`` itself if it is JSON of a type that the schema has, a string
    otherwise."""
    types = json_types(place)
    for written in (text, _PYTHON_WORDS.get(text, "")):
        kind = _type_of(written)
        if kind is not None and (types is None or kind in types):
            return written
        if kind == "integer" and types is not None and "number" in types:
            return written
    return json.dumps(text, ensure_ascii=False)


def json_types(place: Place, depth: int = 0) -> frozenset[str] | None:
    """Names of the types that values may have; None if the schema does not say."""
    schema, whole = place
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = resolved(reference, whole)
        if target is None or depth > _MAX_DEPTH:
            return None
        return json_types((target, whole), depth + 1)
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(item for item in kind if isinstance(item, str))
    if "const" in schema:
        return frozenset({_name(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(map(_name, schema["enum"]))
    for word in ("anyOf", "oneOf"):
        options = schema.get(word)
        if isinstance(options, list) and depth <= _MAX_DEPTH:
            found = [
                json_types((option, whole), depth + 1) if isinstance(option, Mapping) else None
                for option in options
            ]
            known = [types for types in found if types is not None]
            return frozenset().union(*known) if len(known) == len(found) else None
    return None


def resolved(reference: str, whole: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a reference within a schema points to, if it is there."""
    found: Any = whole
    if not reference.startswith("#/"):
        return None
    for part in reference[2:].split("/"):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part.replace("~1", "/").replace("~0", "~"))
    return found if isinstance(found, Mapping) else None


def _type_of(text: str) -> str | None:
    """The type of a JSON text; None if it is none."""
    try:
        return _name(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _name(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return _NAMES.get(type(value), "number")
