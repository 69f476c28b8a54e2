"""API keys from text: parsed, and forgotten as soon as they are hashed.

::

    # comment
    sk-4f1c                                     a key without a name
    alice:sk-7d20                               a key with a name
    bob:sk-93aa  tokens_per_minute=20000 max_concurrency=none   limits of its own
    ops:sk-11c2  admin                          may see and abort everybody's requests

Words are separated by spaces; a word that begins with # ends the line. Several keys may have one
name, so that a key can be replaced without a gap; whoever holds any of them is the same tenant. A
key with a colon in it needs a name. No error ever shows a part of a line, since a mistake may well
have put a key there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from octavo.core.access_config import LimitsConfig
from octavo.core.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_KEY = re.compile(r"[!-~]+")
"""What any client can put into a header, and no proxy will change."""
_COUNT = re.compile(r"[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What a tenant may use; None for no limit."""

    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    @classmethod
    def of(cls, config: LimitsConfig) -> KeyLimits:
        """Those of keys that have none of their own."""
        return cls(
            max_concurrency=config.max_concurrency_per_key,
            requests_per_minute=config.requests_per_minute_per_key,
            tokens_per_minute=config.tokens_per_minute_per_key,
        )


_OPTIONS = tuple(KeyLimits.__dataclass_fields__)
_ADMIN = "admin"


class Entry(NamedTuple):
    """One key. Not to be shown: see `where` for what may be."""

    key: str
    name: str | None
    limits: KeyLimits
    where: str
    """Its place, for errors."""
    is_admin: bool = False
    """Whether it may see and abort the requests of others."""


def single(key: str, where: str, limits: KeyLimits) -> Entry:
    """A key that was given by itself, colons and all.

    Raises:
        ConfigError: no header could carry it.
    """
    _check_key(key, where)
    return Entry(key, None, limits, where)


def parse(text: str, source: str, defaults: KeyLimits) -> Iterator[Entry]:
    """The entries of a text, one a line.

    Raises:
        ConfigError: names the line and what is wrong with it.
    """
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        words = _words(line)
        if not words:
            continue
        where = f"{source}, line {number}"
        before, colon, after = words[0].partition(":")
        name, key = (before, after) if colon else (None, before)
        if name is not None and not _NAME.fullmatch(name):
            raise ConfigError(
                f"{where}: what stands before the colon is no name: use up to 64 letters, digits "
                "and . _ @ -, and give a name to a key that has a colon in it"
            )
        _check_key(key, where)
        limits = _limits(words[1:], where, defaults)
        yield Entry(key, name, limits, where, is_admin=_ADMIN in words[1:])


def _words(line: str) -> list[str]:
    words = line.split()
    end = next((k for k, word in enumerate(words) if word.startswith("#")), len(words))
    return words[:end]


def _check_key(key: str, where: str) -> None:
    if not _KEY.fullmatch(key):
        what = "has characters that a header cannot carry" if key else "is empty"
        raise ConfigError(f"{where}: the key {what}: use letters, digits and punctuation of ASCII")


def _limits(words: list[str], where: str, defaults: KeyLimits) -> KeyLimits:
    values: dict[str, int | None] = {}
    for number, word in enumerate(words, 2):
        if word == _ADMIN:
            continue
        name, _, value = word.partition("=")
        if name not in _OPTIONS or not (value == "none" or _COUNT.fullmatch(value)):
            raise ConfigError(
                f"{where}: word {number} is no limit: after a key come {', '.join(_OPTIONS)}, each "
                f"with = and a whole number of 1 or more, or none; or the word {_ADMIN}"
            )
        if name in values:
            raise ConfigError(f"{where}: {name} stands there twice")
        values[name] = None if value == "none" else int(value)
    return replace(defaults, **values)
