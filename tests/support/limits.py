"""Values at the limits of a JSON schema, and one beyond: what a description promises of a field."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

BOUNDS = frozenset(
    {
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minItems", "maxItems", "minLength", "maxLength", "pattern", "enum", "const"),
        *("items", "additionalProperties"),
    }
)
WRONG = {
    "boolean": (1, "true", []),
    "integer": (0.5, "1", True),
    "number": ("1", True, []),
    "string": (5, ["a"]),
    "array": ({}, 5),
    "object": ([], 5),
}


class Values(NamedTuple):
    """For one field."""

    accepted: list[Any]
    refused: list[Any]
    is_open: bool = False
    """A number without a lower or an upper limit, which needs a case of its own."""


def values_of(schema: dict[str, Any], components: dict[str, Any]) -> Values | None:
    """None for a form that is not known here."""
    accepted: list[Any] = []
    refused: list[Any] = []
    is_open = False
    kinds = set()
    for member in alternatives(schema, components):
        kind = member.get("type")
        kinds.add(kind)
        if "enum" in member or "const" in member:
            accepted += member.get("enum", [member.get("const")])
            refused.append("none of these")
            continue
        match kind:
            case "null":
                accepted.append(None)
            case "boolean":
                accepted += [True, False]
            case "string":
                accepted += [] if "pattern" in member else ["a"]
            case "integer" | "number":
                inside, outside = _numbers(member)
                accepted += inside
                refused += outside
                is_open |= len(outside) < 2
            case "array":
                found = _lists(member, components)
                if found is None:
                    return None
                accepted += found.accepted
                refused += found.refused
            case "object":
                found = _objects(member, components)
                accepted += found.accepted
                refused += found.refused
            case _:
                return None
    refused += [
        value
        for kind in kinds - {"null"}
        for value in WRONG[kind]
        if not any(_is_of(value, other) for other in kinds)
    ]
    return Values(accepted, refused, is_open)


def resolved(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """What a reference stands for."""
    if "$ref" in schema:
        found: dict[str, Any] = components[schema["$ref"].rpartition("/")[2]]
        return found
    return schema


def alternatives(schema: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    """The forms that a value may have, each with the limits that stand beside them."""
    schema = resolved(schema, components)
    beside = {name: value for name, value in schema.items() if name in BOUNDS}
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices is None:
        return [schema]
    members = [member for choice in choices for member in alternatives(choice, components)]
    return [{**member, **beside} for member in members]


def _is_of(value: Any, kind: str) -> bool:
    python = {"boolean": bool, "string": str, "array": list, "object": dict}.get(kind)
    if python is not None:
        return isinstance(value, python)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (kind == "number" or isinstance(value, int))


def _numbers(schema: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    inside, outside = [], []
    is_whole = schema["type"] == "integer"
    for name, away in (("minimum", -math.inf), ("maximum", math.inf)):
        if name in schema:
            at = int(schema[name]) if is_whole else schema[name]
            inside.append(at)
            outside.append(at + int(math.copysign(1, away)) if is_whole else _next(at, away))
    for name, within in (("exclusiveMinimum", math.inf), ("exclusiveMaximum", -math.inf)):
        if name in schema:
            outside.append(schema[name])
            inside.append(_next(schema[name], within))
    return inside or [1], outside


def _next(at: float, towards: float) -> float:
    # Not the next float of all: some limits are compared in other precisions.
    return at + math.copysign(max(1e-6, abs(at) * 1e-6), towards)


def _lists(schema: dict[str, Any], components: dict[str, Any]) -> Values | None:
    items = values_of(schema.get("items", {"type": "integer"}), components)
    if items is None or not [item for item in items.accepted if item is not None]:
        return None
    inner = [item for item in items.accepted if item is not None]
    accepted = [inner[:1] * max(1, schema.get("minItems", 1)), *([item] for item in inner)]
    refused = [[item] for item in items.refused]
    if "minItems" in schema:
        refused.append(inner[:1] * (schema["minItems"] - 1))
    if "maxItems" in schema:
        accepted.append(inner[:1] * schema["maxItems"])
        refused.append(inner[:1] * (schema["maxItems"] + 1))
    return Values(accepted, refused)


def _objects(schema: dict[str, Any], components: dict[str, Any]) -> Values:
    """Those whose names are free; the others are walked through field by field."""
    inner = schema.get("additionalProperties")
    if not isinstance(inner, dict):
        return Values([{}] if not schema.get("required") else [], [])
    found = values_of(inner, components)
    assert found is not None
    return Values([{"5": value} for value in found.accepted], [{"5": v} for v in found.refused])
