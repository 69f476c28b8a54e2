from __future__ import annotations

from pathlib import Path

import pytest

from octavo.core.errors import ModelLoadError
from octavo.loader.fields import Fields

FIELDS = Fields(
    {
        "p.count": 3,
        "p.negative": -1,
        "p.true": True,
        "p.name": "x",
        "p.nan": float("nan"),
        "p.huge": 10**400,
        "p.null": None,
        "p.nested": {"a": 1},
        "p.long": "y" * 500,
    },
    "a/config.json",
    prefix="p.",
)


def test_values_of_the_right_type_are_returned() -> None:
    assert FIELDS.integer("count") == 3
    assert FIELDS.number("count") == 3.0
    assert FIELDS.flag_or("true", False) is True
    assert FIELDS.text_or("name", "") == "x"
    nested = FIELDS.object_or_none("nested")
    assert nested is not None and nested.integer("a") == 1


def test_defaults_stand_in_for_absent_and_null() -> None:
    assert FIELDS.integer_or("null", None) is None
    assert FIELDS.positive_or("absent", 2.5) == 2.5
    assert FIELDS.flag_or("null", True) is True
    assert FIELDS.text_or("absent", "d") == "d"
    assert FIELDS.has("null") and not FIELDS.has("absent")


@pytest.mark.parametrize(
    ("read", "found", "expected"),
    [
        (lambda: FIELDS.integer("absent"), "p.absent is missing", "a whole number of 1 or more"),
        (lambda: FIELDS.integer("negative"), "p.negative is -1", "a whole number of 1 or more"),
        (lambda: FIELDS.integer("true"), "p.true is True", "a whole number"),
        (lambda: FIELDS.number("nan"), "p.nan is nan", "a finite number"),
        (lambda: FIELDS.number("huge"), "p.huge is 1000", "a finite number"),
        (lambda: FIELDS.positive("negative"), "p.negative is -1", "greater than 0"),
        (lambda: FIELDS.flag_or("count", True), "p.count is 3", "true or false"),
        (lambda: FIELDS.text_or("count", ""), "p.count is 3", "a string"),
        (lambda: FIELDS.texts("name"), "p.name is 'x'", "a list of strings"),
        (lambda: FIELDS.object_or_none("count"), "p.count is 3", "an object or null"),
        (lambda: FIELDS.integer("long"), "yyy..., expected", "a whole number"),
    ],
)
def test_errors_name_field_file_value_and_expectation(read, found: str, expected: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read()
    message = str(caught.value)
    assert "a/config.json" in message and found in message and expected in message
    assert len(message) < 200


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "cannot be read as JSON"),
        (b"\xff\xfe{}", "cannot be read as JSON"),
        (b"[" * 200_000, "cannot be read as JSON"),
        (b"[1]", "holds a JSON list, expected an object"),
    ],
)
def test_files_that_are_no_json_object(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=reason) as caught:
        Fields.from_json(path)
    assert str(path) in str(caught.value)


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json is missing"):
        Fields.from_json(tmp_path / "config.json")
