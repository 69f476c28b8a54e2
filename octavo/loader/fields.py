"""Typed reading of the JSON objects and GGUF metadata that describe a model.

Every getter either returns a value of the type asked for or raises an error that names the field,
the file, what was found and what was expected. JSON null counts as absent, except in `has`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from octavo.core.errors import ModelLoadError

Default = TypeVar("Default")

_TOO_LARGE = 2**1000
_LFS_POINTER = b"version https://git-lfs"


def _cause(path: Path, error: Exception) -> str:
    """What is wrong with a file, and what to do about it."""
    if isinstance(error, OSError):
        return str(error)
    content = path.read_bytes()
    if not content.strip():
        return "it is empty; fetch it again"
    if content.startswith(_LFS_POINTER):
        return "it is a pointer of Git LFS, not the file itself; run git lfs pull"
    return f"{error}. It is truncated or damaged ({len(content):,} bytes); fetch it again"


class Fields:
    """A mapping read from a file.

    ``where`` names the file in errors; ``prefix`` stands before every name in the mapping.
    """

    def __init__(self, values: Mapping[str, object], where: object, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.where = str(where)

    @classmethod
    def from_json(cls, path: Path) -> Fields:
        """Reads a file that holds one JSON object.

        Raises:
            ModelLoadError: it cannot be read, is no JSON, or is no object.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelLoadError(f"{path} is missing") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ModelLoadError(f"{path} cannot be read as JSON: {_cause(path, error)}") from error
        if not isinstance(values, dict):
            raise ModelLoadError(f"{path} holds a JSON {type(values).__name__}, expected an object")
        return cls(values, path)

    def has(self, name: str) -> bool:
        """Whether the field is there, even as null."""
        return self._prefix + name in self._values

    def get(self, name: str) -> object:
        """The value as it is; None if absent."""
        return self._values.get(self._prefix + name)

    def integer(self, name: str, *, low: int = 1) -> int:
        """A whole number of at least ``low``."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.error(name, f"a whole number of {low} or more")
        return value

    def integer_or(self, name: str, default: Default, *, low: int = 1) -> int | Default:
        """`integer`, or ``default`` if the field is absent or null."""
        return default if self.get(name) is None else self.integer(name, low=low)

    def number(self, name: str) -> float:
        """A finite number."""
        value = self.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            # A whole number may be too large for a float; JSON sets no limit.
            number = float(value) if abs(value) < _TOO_LARGE else math.inf
            if math.isfinite(number):
                return number
        raise self.error(name, "a finite number")

    def positive(self, name: str) -> float:
        """A finite number greater than 0."""
        value = self.number(name)
        if value <= 0:
            raise self.error(name, "a number greater than 0")
        return value

    def positive_or(self, name: str, default: float) -> float:
        """`positive`, or ``default`` if the field is absent or null."""
        return default if self.get(name) is None else self.positive(name)

    def flag_or(self, name: str, default: bool) -> bool:
        """true or false, or ``default`` if the field is absent or null."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text_or(self, name: str, default: str) -> str:
        """A string, or ``default`` if the field is absent or null."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, "a list of strings")
        return value

    def object_or_none(self, name: str) -> Fields | None:
        """A nested object, or None if the field is absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "an object or null")
        return Fields(value, f"{name} in {self.where}")

    def error(self, name: str, expected: str) -> ModelLoadError:
        """The error to raise for a field that is not as expected."""
        full = self._prefix + name
        if not self.has(name):
            return ModelLoadError(f"{self.where}: field {full} is missing, expected {expected}")
        return ModelLoadError(
            f"{self.where}: field {full} is {_shown(self.get(name))}, expected {expected}"
        )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
