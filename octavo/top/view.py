"""What the keys change: order, selection, pause, and the question before an abort."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from octavo.metrics.live import Json, Picture
from octavo.top.figures import count, duration, percent

_OWN_ID = re.compile(r"([a-z]+-)?([0-9a-f]{8})[0-9a-f]{24}(.*)", re.DOTALL)


class Column(NamedTuple):
    """A column of the table of requests."""

    title: str
    width: int
    """In cells; 0 for all that is left."""
    value: Callable[[str, Json, float], Any]
    """What is sorted by, of an id, its row and the engine's clock; None for nothing."""
    text: Callable[[Any], str]
    least_width: int = 0
    """The terminal's, without which it is left out."""


def _field(name: str) -> Callable[[str, Json, float], Any]:
    return lambda _id, row, _now: row.get(name)


def _age(_id: str, row: Json, now: float) -> float | None:
    return max(0.0, now - row["arrived_s"]) if "arrived_s" in row else None


def _acceptance(_id: str, row: Json, _now: float) -> float | None:
    drafted = row.get("num_drafted_tokens")
    return row.get("num_accepted_tokens", 0) / drafted if drafted else None


def short_id(request_id: str) -> str:
    """An id without its kind and all but 8 of its digits, if the server has made it."""
    found = _OWN_ID.fullmatch(request_id)
    return request_id if found is None else found[2] + ("" if found[3] == "-0" else found[3])


COLUMNS = (
    Column("REQUEST", 0, lambda name, _row, _now: name, short_id),
    Column("CLIENT", 12, _field("client"), lambda value: value or "", 110),
    Column("STATE", 9, _field("state"), lambda value: value or ""),
    Column("AGE", 6, _age, duration),
    Column("PROMPT", 7, _field("num_prompt_tokens"), count),
    Column("CACHED", 7, _field("num_cached_tokens"), count, 60),
    Column("COMPUTED", 8, _field("num_computed_tokens"), count, 120),
    Column("OUTPUT", 7, _field("num_generated_tokens"), count),
    Column("BLOCKS", 6, _field("num_blocks"), count, 50),
    Column("WASTE", 5, _field("num_wasted_slots"), count, 100),
    Column("QUEUED", 6, _field("queue_s"), duration, 130),
    Column("FIRST", 6, _field("first_token_s"), duration, 70),
    Column("EACH", 6, _field("inter_token_s"), duration, 78),
    Column("GUESSED", 7, _acceptance, percent, 140),
    Column("PREEMPT", 7, _field("num_preemptions"), count, 140),
)
_AGE = next(k for k, column in enumerate(COLUMNS) if column.title == "AGE")


def shown_columns(width: int) -> list[Column]:
    """Those that a terminal of this width has room for."""
    return [column for column in COLUMNS if width >= column.least_width]


@dataclass
class View:
    """How the user wants to see it."""

    sorted_by: int = _AGE
    """An index into `COLUMNS`."""
    is_reversed: bool = False
    """Least first instead of most first."""
    selected: str | None = None
    """A request's id."""
    confirming: str | None = None
    """The request that an abort was asked for, and that is to be confirmed."""
    message: str = ""
    """To be shown until the next key."""
    frozen: Picture | None = None
    """What is shown while it pauses."""
    first_row: int = 0
    """Of the table's window."""

    def rows(self, picture: Picture) -> list[tuple[str, Json]]:
        """Requests in order; those without a value last."""
        requests = picture.state.get("requests", {}).get("rows", {})
        now = picture.state.get("clock_s", 0.0)
        value = COLUMNS[self.sorted_by].value
        keyed = [(value(name, row, now), name, row) for name, row in requests.items()]
        known = [entry for entry in keyed if entry[0] is not None]
        known.sort(key=lambda entry: entry[:2], reverse=not self.is_reversed)
        unknown = [entry for entry in keyed if entry[0] is None]
        return [(name, row) for _, name, row in known + unknown]

    def window(self, num_rows: int, at: int | None, size: int) -> range:
        """The rows that are shown, moved only as far as the selected one needs it."""
        first = min(self.first_row, max(0, num_rows - size))
        if at is not None:
            first = max(min(first, at), at - size + 1)
        self.first_row = max(0, first)
        return range(self.first_row, min(num_rows, self.first_row + size))

    def press(self, key: str, picture: Picture, width: int) -> str | None:
        """Takes in a key; returns the id of a request that is to be aborted now."""
        self.message = ""
        if self.confirming is not None:
            name, self.confirming = self.confirming, None
            return name if key in ("y", "Y") else None
        if key == "s":
            self._sort_by_next(width)
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif key == "p":
            self.frozen = copy.deepcopy(picture) if self.frozen is None else None
        elif key == "escape":
            self.selected = None
        elif key == "a":
            self._ask_to_abort(picture)
        elif key in _MOVES:
            self._move(_MOVES[key], picture)
        return None

    def _sort_by_next(self, width: int) -> None:
        columns = shown_columns(width)
        by = COLUMNS[self.sorted_by]
        at = columns.index(by) if by in columns else -1
        self.sorted_by = COLUMNS.index(columns[(at + 1) % len(columns)])

    def _ask_to_abort(self, picture: Picture) -> None:
        rows = picture.state.get("requests", {}).get("rows", {})
        if self.selected in rows:
            self.confirming = self.selected
        else:
            self.message = "select a request first: up and down keys"

    def _move(self, by: int, picture: Picture) -> None:
        names = [name for name, _ in self.rows(picture)]
        if not names:
            return
        if self.selected in names:
            at = names.index(self.selected) + by
        else:
            at = 0 if by > 0 else len(names) - 1
            at = by if abs(by) == _FAR else at
        self.selected = names[max(0, min(len(names) - 1, at))]


_FAR = 1 << 30
_MOVES = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page up": -10,
    "page down": 10,
    "home": -_FAR,
    "end": _FAR,
}
