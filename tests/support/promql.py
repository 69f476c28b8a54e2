"""As much of PromQL as it takes to see which metrics and labels a query names."""

from __future__ import annotations

import re
from typing import NamedTuple

_SELECTOR = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?P<body>\{[^}]*\})?(?P<range>\[[^\]]*\])?"
)
_MATCHER = re.compile(r'\s*(?P<label>[a-zA-Z_][a-zA-Z0-9_]*)\s*(?:=~|!~|!=|=)\s*"[^"]*"\s*(?:,|$)')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\((?P<labels>[^)]*)\)")
_PREFIXES = ("octavo:", "process_")


class Use(NamedTuple):
    """One metric in a query, and the labels that the query asks of it."""

    metric: str
    labels: frozenset[str]


def uses_of(query: str) -> list[Use]:
    """Every metric of a query with the labels in its braces and in the query's groupings.

    Raises:
        AssertionError: what cannot be understood.
    """
    for left, right in ("()", "{}", "[]"):
        assert query.count(left) == query.count(right), query
    grouped = {
        label.strip() for found in _GROUPING.finditer(query) for label in found["labels"].split(",")
    }
    rest = _GROUPING.sub(" ", query)
    found = []
    for selector in _SELECTOR.finditer(re.sub(r'"[^"]*"', '""', rest)):
        name, body = selector["name"], selector["body"]
        if not name.startswith(_PREFIXES):
            assert body is None or name == "up", f"{name} is none of ours: {query}"
            continue
        labels = set(_labels(body)) if body else set()
        found.append(Use(name, frozenset(labels | grouped)))
    return found


def _labels(body: str) -> list[str]:
    text, labels = body[1:-1], []
    while text.strip():
        matcher = _MATCHER.match(text)
        assert matcher is not None, f"{body}: what is {text!r}?"
        labels.append(matcher["label"])
        text = text[matcher.end() :]
    return labels
