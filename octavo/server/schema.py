"""What all request bodies have in common: strict types, and refusals by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Discriminator, Tag, model_validator

from octavo.server.complaints import UNSUPPORTED, unknown, unsupported

_OLDER_NAMES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""What other servers once had at the top level, and now below ``structured_outputs``."""


@cache
def _field_names(body: type[BaseModel]) -> frozenset[str]:
    """Fields as clients write them."""
    return frozenset(field.alias or name for name, field in body.model_fields.items())


class Body(BaseModel):
    """A JSON object whose fields are all known, and have the type that they should have."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Fields that the API has and this server does not offer, and values that ask for nothing."""
    reasons: ClassVar[dict[str, str]] = {}
    """What to say of some of them, after the name."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_by_name(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = _field_names(cls)
        others = [name for name in data if name not in known]
        for name in others:
            if name in _OLDER_NAMES:
                raise unsupported(
                    name, f"is an older name: use structured_outputs with {_OLDER_NAMES[name]!r}"
                )
            if name not in cls.unsupported:
                raise unknown(name, known)
            if data[name] is not None and data[name] not in cls.unsupported[name]:
                raise unsupported(name, cls.reasons.get(name, UNSUPPORTED))
        return {name: data[name] for name in data if name not in others} if others else data


def text_or_list(value: Any) -> str | None:
    """The form of a value that is text or a list."""
    if isinstance(value, str):
        return "~text"
    return "~list" if isinstance(value, list) else None


def form(choose: Callable[[Any], str | None], wanted: str) -> Discriminator:
    """Picks the union's member by the value's form, so that complaints are about that one."""
    return Discriminator(
        choose, custom_error_type="wrong_form", custom_error_message=f"use {wanted}"
    )


Strings = Annotated[
    Annotated[str, Tag("~text")] | Annotated[list[str], Tag("~list")],
    form(text_or_list, "a string or a list of strings"),
]


class Other(BaseModel):
    """What an API has of a kind of object, and this server does not take: always refused."""

    model_config = ConfigDict(extra="forbid")

    taken: ClassVar[str] = "text"
    """What may stand in its place."""

    type: str

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str):
            raise unsupported("type", f"is {kind!r}, which is not supported here: use {cls.taken}")
        return data


def by_type(*kinds: str, without: str | None = None) -> Discriminator:
    """Picks the union's member by its ``type``; anything that is none of ``kinds`` is ``~other``.

    Args:
        without: the kind of an object that has no type.
    """

    def choose(value: Any) -> str | None:
        if not isinstance(value, dict):
            return None
        kind = value.get("type")
        kind = without if kind is None else kind
        return f"~{kind}" if isinstance(kind, str) and kind in kinds else "~other"

    return form(choose, "an object")
