"""The block map: two cells in a character, one above the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from octavo.metrics.live import Picture
from octavo.top.figures import CLASSES, classes
from octavo.top.lines import Line, piece

COLOURS = {
    "free": (70, 75, 84),
    "cached": (201, 152, 32),
    "used": (64, 145, 214),
    "shared": (186, 110, 226),
    "draft": (228, 88, 76),
}
LIT = (255, 255, 255)
"""A block of the selected request."""
SIGNS = {"free": ".", "cached": "-", "used": "#", "shared": "=", "draft": "~"}
"""For terminals without colours, a character a cell."""
LIT_SIGN = "@"
_NUM_KINDS = len(CLASSES) + 1
_STEPS = 4
"""Shades between free and not free, for cells of several blocks."""

Counts = np.ndarray[Any, np.dtype[np.int64]]


def blocks_per_cell(num_blocks: int, num_cells: int) -> int:
    """So many that the map has room for all."""
    return max(1, -(-num_blocks // max(1, num_cells)))


def rows_wanted(num_blocks: int, width: int, most: int, *, in_colour: bool) -> int:
    """Lines of text that a map of ``width`` columns fills, ``most`` at most."""
    per_line = width * (2 if in_colour else 1)
    return min(most, -(-num_blocks // per_line))


def counted(picture: Picture, num_cells: int, lit: Iterable[int]) -> Counts:
    """Blocks of each kind in each cell, as [cells, kinds]: `CLASSES`, and those that are lit."""
    kinds = classes(picture)
    kinds[[block for block in lit if block < len(kinds)]] = len(CLASSES)
    size = blocks_per_cell(len(kinds), num_cells)
    cell = np.arange(len(kinds)) // size
    filled = -(-len(kinds) // size)
    found: Counts = np.bincount(cell * _NUM_KINDS + kinds, minlength=filled * _NUM_KINDS)
    return found.reshape(filled, _NUM_KINDS)


def block_map(
    picture: Picture, width: int, height: int, lit: Iterable[int], *, in_colour: bool
) -> list[Line]:
    """Lines of at most ``width`` columns. A cell of several blocks has the mixed colour of those
    that are not free, the fainter the more are."""
    num_cells = width * height * (2 if in_colour else 1)
    if not num_cells or not picture.num_blocks:
        return []
    counts = counted(picture, num_cells, lit)
    if not in_colour:
        text = "".join(_sign(row) for row in counts)
        return [[piece(text[k : k + width])] for k in range(0, len(text), width)]
    colours = _colours(counts)
    return [
        _pair(colours[k : k + width], colours[k + width : k + 2 * width])
        for k in range(0, len(colours), 2 * width)
    ]


def _pair(upper: Sequence[int], lower: Sequence[int]) -> Line:
    cells = zip(upper, [*lower, *[-1] * (len(upper) - len(lower))], strict=True)
    return [Segment("▀" * len(list(same)), _style(*cell)) for cell, same in groupby(cells)]


@lru_cache(maxsize=4096)
def _style(upper: int, lower: int) -> Style:
    return Style(color=_rgb(upper), bgcolor=None if lower < 0 else _rgb(lower))


def _rgb(number: int) -> Color:
    return Color.from_rgb(number >> 16, number >> 8 & 255, number & 255)


def _colours(counts: Counts) -> list[int]:
    """Of each cell, as 24 bits."""
    palette = np.array([*COLOURS.values(), LIT], float)
    taken = counts[:, 1:].astype(float)
    num_taken = taken.sum(axis=1, keepdims=True)
    mixed = taken @ palette[1:] / np.maximum(num_taken, 1)
    mixed[counts[:, -1] > 0] = LIT
    share = np.ceil(num_taken / counts.sum(axis=1, keepdims=True) * _STEPS) / _STEPS
    share[counts[:, -1] > 0] = 1
    shown = (palette[0] * (1 - share) + mixed * share).round().astype(int)
    numbers: list[int] = (shown[:, 0] << 16 | shown[:, 1] << 8 | shown[:, 2]).tolist()
    return numbers


def _sign(counts: Counts) -> str:
    if counts[-1]:
        return LIT_SIGN
    taken = counts[1 : len(CLASSES)]
    return SIGNS[CLASSES[1 + int(taken.argmax())] if taken.any() else CLASSES[0]]
