"""Lines of styled text. What a server says comes to the screen through `piece`, as text alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style

Line = list[Segment]

_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
    "windows": ColorSystem.WINDOWS,
}


@lru_cache(maxsize=256)
def style(definition: str) -> Style:
    """A style in rich's words, such as ``bold red``."""
    return Style.parse(definition)


def inert(text: str) -> str:
    """Text in which everything that a terminal might obey, or that cannot be seen, is escaped."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def piece(
    text: str, definition: str = "", *, width: int | None = None, right: bool = False
) -> Segment:
    """A piece of a line.

    Args:
        width: cells that it takes; a text that is longer ends in an ellipsis.
        right: put it to the right of them.
    """
    text = inert(text)
    if width is not None:
        size = cell_len(text)
        if size > width:
            text = set_cell_size(text, width - 1) + "…" if width > 0 else ""
        else:
            text = " " * (width - size) + text if right else text + " " * (width - size)
    return Segment(text, style(definition))


def fit(line: Iterable[Segment], width: int) -> Line:
    """A line cut to ``width`` cells."""
    return list(Segment.adjust_line_length(list(line), width, pad=False))


def encoded(line: Line, colours: str | None) -> str:
    """As a terminal takes it.

    Args:
        colours: what it can show, in rich's words; None for text alone.
    """
    system = _SYSTEMS[colours] if colours is not None else None
    return "".join((s.style or Style.null()).render(s.text, color_system=system) for s in line)
