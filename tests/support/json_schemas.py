"""Random JSON schemas whose values are small, of the keywords that people use."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
_NAMES = st.sampled_from(["a", "name", "x-1", "größe", 'q"uote', "b c", "id", "tags"])
_VALUES = (
    st.none() | st.booleans() | st.integers(-99, 99) | st.sampled_from(["", "é", 'a"b', "x\n"])
)


@st.composite
def _strings(draw: st.DrawFn) -> Schema:
    low = draw(st.integers(0, 3))
    return {"type": "string", "minLength": low, "maxLength": low + draw(st.integers(0, 4))}


@st.composite
def _integers(draw: st.DrawFn) -> Schema:
    low = draw(st.integers(-1000, 1000))
    return {"type": "integer", "minimum": low, "maximum": low + draw(st.integers(0, 500))}


@st.composite
def _numbers(draw: st.DrawFn) -> Schema:
    low = draw(st.integers(-50, 50))
    return {"type": "number", "exclusiveMinimum": low, "maximum": low + draw(st.integers(1, 9))}


_LEAVES = st.one_of(
    _strings(),
    _integers(),
    _numbers(),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}]),
    st.sampled_from([{"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"}]),
    st.sampled_from([{"type": "string", "format": "date"}]),
    st.lists(_VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    _VALUES.map(lambda value: {"const": value}),
)


def _compounds(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.one_of(_objects(inner), _arrays(inner), _unions(inner))


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(_NAMES, inner, max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


@st.composite
def _arrays(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    low = draw(st.integers(0, 2))
    return {
        "type": "array",
        "items": draw(inner),
        "minItems": low,
        "maxItems": low + draw(st.integers(0, 1)),
    }


def _unions(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options})


@st.composite
def _shared(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    """The same definition in two places."""
    place = {"$ref": "#/$defs/part"}
    return {
        "$defs": {"part": draw(inner)},
        "type": "object",
        "properties": {"one": place, "two": place},
        "required": ["two"],
        "additionalProperties": False,
    }


schemas: st.SearchStrategy[Schema] = st.one_of(
    st.recursive(_LEAVES, _compounds, max_leaves=4), _shared(_LEAVES)
)
