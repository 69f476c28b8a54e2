"""Command-line flags made from the configuration's fields, their types and their documentation."""

from __future__ import annotations

import argparse
import dataclasses
import re
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

from octavo.core.options import ALIASES, part_fields

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?", re.IGNORECASE)
SIZE_FIELDS = frozenset({"kv_cache_memory", "max_header_bytes", "max_request_bytes"})
"""Fields in bytes, for which ``4GiB`` may be written."""
ONE_AT_A_TIME = frozenset({"api_key"})
"""Flags that take one value and may be repeated. (Other lists take all words up to the next flag;
there, a model's name that follows by mistake does no harm.)"""


def parse_size(text: str) -> int:
    """Bytes in ``123``, ``512M``, ``4GiB`` or ``1.5g``; units are powers of 1,024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write 4GiB, 512M or bytes")
    return int(float(match["number"]) * _UNITS[match["unit"].upper()])


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
        group = parser.add_argument_group((part.__doc__ or part.__name__).splitlines()[0])
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
    choices = _choices(hint)
    if choices and not _scalars(hint):
        return {"choices": choices}
    scalar = parse_size if name in SIZE_FIELDS else _scalars(hint)[0]
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


def _members(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _choices(hint: Any) -> list[str]:
    literals = [member for member in _members(hint) if typing.get_origin(member) is Literal]
    return [choice for literal in literals for choice in typing.get_args(literal)]


def _scalars(hint: Any) -> list[Callable[[str], Any]]:
    return [member for member in _members(hint) if member in (int, float, str)]


def _or_word(scalar: Callable[[str], Any], words: list[str]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        return text if text in words else scalar(text)

    # argparse puts the name into its message: "invalid int value: 'x'".
    parse.__name__ = getattr(scalar, "__name__", "value")
    return parse


def _metavar(name: str, scalar: Callable[[str], Any]) -> str:
    if scalar is parse_size:
        return "SIZE"
    if scalar is int or scalar is float:
        return "N" if scalar is int else "X"
    return name.rsplit("_", 1)[-1].upper()
