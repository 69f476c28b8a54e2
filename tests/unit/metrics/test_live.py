from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.metrics.live import COLUMNS, Picture, difference, merge, packed, unpacked, without_nulls

SCALARS = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
OBJECTS = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), SCALARS, max_size=4),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), st.one_of(SCALARS, inner), max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(old=OBJECTS, new=OBJECTS)
def test_a_difference_makes_one_of_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = difference(old, new)
    assert merge(old, patch) == new
    assert difference(new, new) == {}


def test_examples_of_rfc_7396() -> None:
    for old, patch, result in (
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": "foo"}, {"b": {"c": None}}, {"a": "foo", "b": {}}),
        (["a"], {"a": 1}, {"a": 1}),
    ):
        assert merge(old, patch) == result


def test_nulls_are_absent() -> None:
    assert without_nulls({"a": None, "b": {"c": None, "d": 0}}) == {"b": {"d": 0}}


@pytest.mark.parametrize("code", ["B", "H", "I", "d"])
def test_packing(code: str) -> None:
    numbers = array(code, [0, 1, 200])
    assert unpacked(packed(numbers), code) == numbers
    assert packed(array("H", [258])) == "AgE="


def blocks(**columns: list[Any]) -> dict[str, Any]:
    codes = {"ids": "I", **COLUMNS}
    return {name: packed(array(codes[name], values)) for name, values in columns.items()}


def test_a_picture() -> None:
    picture = Picture()
    rows = {"r": {"state": "running"}, "s": {"state": "waiting"}}
    one = blocks(ids=[2], states=[1], tokens=[16], ref_counts=[2], hashes=[0xAB], changed_s=[1.5])
    picture.apply(
        "snapshot",
        {
            "state": {"requests": {"rows": rows}},
            "tables": {"r": [0, [2, 1]]},
            "blocks": {"num_blocks": 3, "state_names": ["free", "used"], **one},
            "history": {"time": [1]},
        },
    )
    assert picture.num_blocks == 3 and picture.holders(2) == ["r"]
    assert picture.block(2) == ("used", 16, 2, "000000ab", 1.5)
    assert picture.block(0) == ("free", 0, 0, "", 0.0)
    picture.apply("delta", {"state": {}, "tables": {"r": [1, [0, 2]]}, "sample": {"time": 2}})
    assert picture.tables == {"r": [2, 0, 2]} and picture.history == {"time": [1, 2]}
    picture.apply("delta", {"state": {"requests": {"rows": {"r": None}}}})
    assert picture.tables == {} and list(picture.state["requests"]["rows"]) == ["s"]
