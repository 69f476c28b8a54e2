"""Flat option names to composed configuration dataclasses, and the fields' own documentation.

One place knows which names exist, so that `LLM(...)`, the command line and the reference page
cannot drift apart.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from octavo.core.errors import ConfigError

ALIASES = {
    "gpu_memory_utilization": "memory_utilization",
    "num_gpu_blocks_override": "num_blocks",
    "drain_timeout": "drain_timeout_s",
    "request_timeout": "request_timeout_s",
    "slow_client_timeout": "slow_client_timeout_s",
}
"""Names that users of other engines know, and ours."""


def require(condition: bool, message: str) -> None:
    """Raises `ConfigError` with the message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


@cache
def field_docs(config: type) -> dict[str, str]:
    """The docstring line under each field of a configuration dataclass."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(config)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for statement, following in itertools.pairwise(body):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def parts(composed: type) -> Iterator[tuple[str, type]]:
    """(name, dataclass) of each part of a composed configuration."""
    hints = get_type_hints(composed)
    for part in fields(composed):
        yield part.name, hints[part.name]


def part_fields(part: type) -> Iterator[tuple[Field[Any], Any, str]]:
    """(field, resolved type, documentation) of each setting of one part; parts within it are not
    among them."""
    hints, docs = get_type_hints(part), field_docs(part)
    for item in fields(part):
        if not is_dataclass(hints[item.name]):
            yield item, hints[item.name], docs[item.name]


def split_options(composed: type, options: dict[str, object]) -> dict[str, Any]:
    """Groups flat options by the part that owns each name, and builds the parts."""
    owner = {item.name: name for name, part in parts(composed) for item in fields(part)}
    grouped: dict[str, dict[str, object]] = {name: {} for name, _ in parts(composed)}
    for given, value in options.items():
        name = ALIASES.get(given, given)
        if name not in owner:
            known = [*owner, *(alias for alias, meant in ALIASES.items() if meant in owner)]
            close = difflib.get_close_matches(name, known, n=3)
            hint = f": did you mean {', '.join(close)}?" if close else ""
            raise ConfigError(f"unknown option {given!r}{hint}")
        grouped[owner[name]][name] = value
    return {name: part(**grouped[name]) for name, part in parts(composed)}
