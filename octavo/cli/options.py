"""Command-line flags made from the configuration's fields, their types and their documentation."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Callable
from typing import Any

from octavo.core.errors import ConfigError
from octavo.core.options import (
    ALIASES,
    SIZE_FIELDS,
    members,
    parse_size,
    part_fields,
    words,
)

ONE_AT_A_TIME = frozenset({"api_key"})
"""Flags that take one value and may be repeated. (Other lists take all words up to the next flag;
there, a model's name that follows by mistake does no harm.)"""


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_config_options(
    parser: argparse.ArgumentParser, *parts: type, skip: frozenset[str] = frozenset()
) -> None:
    """Adds a group of flags for each configuration part.

    A flag that is not given stays out of the parsed namespace, so that the dataclasses' own
    defaults are the only ones.
    """
    known_as: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        known_as.setdefault(name, []).append(alias)
    for part in parts:
        group = parser.add_argument_group(_title(part))
        for item, hint, doc in part_fields(part):
            if item.name in skip:
                continue
            names = [
                f"--{name.replace('_', '-')}" for name in (item.name, *known_as.get(item.name, []))
            ]
            group.add_argument(
                *names,
                dest=item.name,
                default=argparse.SUPPRESS,
                help=_help(item, doc),
                **_argument(item.name, hint),
            )


def given_options(args: argparse.Namespace, *parts: type) -> dict[str, Any]:
    """The options of these parts that the user gave, by field name."""
    names = {item.name for part in parts for item in dataclasses.fields(part)}
    return {name: value for name, value in vars(args).items() if name in names}


def _title(part: type) -> str:
    """The first line of the part's documentation, to which argparse adds a colon."""
    return (part.__doc__ or part.__name__).splitlines()[0].removesuffix(".").replace("``", "")


def _help(item: dataclasses.Field[Any], doc: str) -> str:
    default = " ".join(item.default) if isinstance(item.default, tuple) else item.default
    shown = "" if default in (None, "") or default is dataclasses.MISSING else f" [{default}]"
    return (doc + shown).replace("%", "%%")


def _argument(name: str, hint: Any) -> dict[str, Any]:
    """What argparse must know to parse a value of type ``hint``."""
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is tuple:
        nargs = 1 if name in ONE_AT_A_TIME else "+"
        return {"nargs": nargs, "action": _TupleAction, "metavar": _metavar(name, str)}
    choices = words(hint)
    if choices and not _scalars(hint):
        return {"choices": choices}
    scalar = _size if name in SIZE_FIELDS else _scalars(hint)[0]
    return {"type": _or_word(scalar, choices), "metavar": _metavar(name, scalar)}


class _TupleAction(argparse.Action):
    """Values of all occurrences of the flag, in order."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), *values))


def _scalars(hint: Any) -> list[Callable[[str], Any]]:
    return [member for member in members(hint) if member in (int, float, str)]


def _or_word(scalar: Callable[[str], Any], choices: list[str]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        return text if text in choices else scalar(text)

    # argparse puts the name into its message: "invalid int value: 'x'".
    parse.__name__ = getattr(scalar, "__name__", "value")
    return parse


def _metavar(name: str, scalar: Callable[[str], Any]) -> str:
    if scalar is _size:
        return "SIZE"
    if scalar is int or scalar is float:
        return "N" if scalar is int else "X"
    return name.rsplit("_", 1)[-1].upper()
