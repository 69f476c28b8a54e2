"""A frame: everything that the screen shows, line by line."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.metrics.live import Picture
from octavo.top import blockmap
from octavo.top.figures import CLASSES, block_counts, count, duration, percent, rate, rates
from octavo.top.lines import Line, fit, piece
from octavo.top.view import COLUMNS, View, shown_columns

_KEYS = "q quit  ↑↓ select  esc none  a abort  s sort  r reverse  p pause"
_LEAST_TABLE = 4
_LEAST_HEIGHT = 14
"""Without a map below it."""


@dataclass(frozen=True)
class Size:
    """What there is room for."""

    width: int
    height: int
    in_colour: bool
    """Whether colours and half-blocks can be shown."""


def frame(picture: Picture, told: str, view: View, size: Size, url: str) -> list[Line]:
    """At most ``size.height`` lines of ``size.width`` cells.

    Args:
        told: what is wrong with the connection; empty if nothing is.
        url: the server's.
    """
    head = _head(picture, told, view, url)
    counts = block_counts(picture)
    selected = view.selected if view.selected in picture.tables else None
    lit = picture.tables[selected] if selected is not None else ()
    most = (size.height - len(head) - _LEAST_TABLE) // 2 - 1
    if size.height >= _LEAST_HEIGHT and counts["total"]:
        rows = blockmap.rows_wanted(picture.num_blocks, size.width, most, in_colour=size.in_colour)
        head.append(_legend(picture, counts, size, rows))
        head += blockmap.block_map(picture, size.width, rows, lit, in_colour=size.in_colour)
    table = _table(picture, view, size.width, max(0, size.height - len(head) - 3))
    lines = [*head, _chosen(picture, view), *table]
    lines = lines[: size.height - 1]
    lines += [[] for _ in range(size.height - 1 - len(lines))]
    return [fit(line, size.width) for line in [*lines, _foot(view)]]


def _head(picture: Picture, told: str, view: View, url: str) -> list[Line]:
    state = picture.state
    status = state.get("status", "")
    if told:
        shown, colour = "not connected", "bold red"
    elif status == "ok":
        shown, colour = "live", "bold green"
    else:
        shown, colour = status or "waiting", "bold yellow"
    if view.frozen is not None:
        shown, colour = f"paused ({shown})", "bold yellow"
    names = ", ".join(state.get("model_names", ()))
    first = [piece("octavo top", "bold"), piece(f"  {url}  {names}  "), piece(shown, colour)]
    lines = [first, *_figures(picture)]
    problem = told or state.get("problem", "")
    if problem:
        lines.insert(1, [piece(problem, "yellow")])
    return lines


def _figures(picture: Picture) -> list[Line]:
    state, found = picture.state, rates(picture)
    requests, cache = state.get("requests", {}), state.get("kv_cache", {})
    blocks = cache.get("blocks", {})

    def named(name: str, value: str) -> Line:
        return [piece(f"{name} ", "dim"), piece(value, "bold"), piece("  ")]

    def both(name: str) -> str:
        return f"{duration(found[f'{name}_p50'])}/{duration(found[f'{name}_p99'])}"

    return [
        [
            piece("tokens/s  ", "dim"),
            *named("prefill", rate(found["prompt_tokens_per_s"])),
            *named("decode", rate(found["generated_tokens_per_s"])),
            *named("running", count(requests.get("running"))),
            *named("waiting", count(requests.get("waiting"))),
            *named("steps/s", rate(found["steps_per_s"])),
        ],
        [
            *named("KV", percent(cache.get("usage"))),
            *named("blocks", f"{count(blocks.get('used'))}/{count(blocks.get('total'))}"),
            *named("hits", percent(found["prefix_hit_rate"])),
            *named("first token p50/p99", both("first_token_s")),
            *named("each", both("inter_token_s")),
        ],
    ]


def _legend(picture: Picture, counts: dict[str, int], size: Size, rows: int) -> Line:
    line: Line = []
    for name in CLASSES:
        red, green, blue = blockmap.COLOURS[name]
        sign = "■" if size.in_colour else blockmap.SIGNS[name]
        line += [piece(sign, f"rgb({red},{green},{blue})"), piece(f" {name} {counts[name]:,}  ")]
    cells = size.width * rows * (2 if size.in_colour else 1)
    each = blockmap.blocks_per_cell(picture.num_blocks, cells)
    return [*line, piece(f"{each:,} a cell" if each > 1 else "", "dim")]


def _chosen(picture: Picture, view: View) -> Line:
    """The selected request in full, or how many there are."""
    requests = picture.state.get("requests", {})
    rows = requests.get("rows", {})
    if view.selected is not None and view.selected in rows:
        table = picture.tables.get(view.selected, [])
        return [piece(view.selected, "bold"), piece(f"  blocks {' '.join(map(str, table[:40]))}")]
    if view.selected is not None:
        return [piece(view.selected, "bold"), piece("  has ended", "dim")]
    left_out = requests.get("left_out", 0)
    more = f", {left_out:,} more not listed" if left_out else ""
    return [piece(f"{len(rows):,} request{'s' * (len(rows) != 1)}{more}", "dim")]


def _table(picture: Picture, view: View, width: int, height: int) -> list[Line]:
    """Titles, and ``height`` rows at most."""
    columns = shown_columns(width)
    rest = width - 2 - sum(column.width + 1 for column in columns if column.width)
    by = COLUMNS[view.sorted_by]
    titles: Line = [piece("  ", "bold")]
    for column in columns:
        arrow = ("▲" if view.is_reversed else "▼") if column is by else ""
        titles += _cell(
            column.title[: (column.width or rest) - len(arrow)] + arrow, column.width, rest, "bold"
        )
    rows = view.rows(picture)
    names = [name for name, _ in rows]
    at = names.index(view.selected) if view.selected in names else None
    now = picture.state.get("clock_s", 0.0)
    lines = [titles]
    for k in view.window(len(rows), at, height):
        look = "reverse" if k == at else "" if rows[k][1].get("state") == "running" else "dim"
        line = [piece("▸ " if k == at else "  ", look)]
        for column in columns:
            text = column.text(column.value(*rows[k], now))
            line += _cell(text, column.width, rest, look)
        lines.append(line)
    return lines


def _cell(text: str, width: int, rest: int, look: str) -> Line:
    if not width:
        return [piece(text, look, width=max(1, rest))]
    return [piece(" ", look), piece(text, look, width=width, right=True)]


def _foot(view: View) -> Line:
    if view.confirming is not None:
        return [piece(f"abort {view.confirming[:40]}? y/n", "bold red")]
    if view.message:
        return [piece(view.message, "yellow")]
    return [piece(_KEYS, "dim")]
