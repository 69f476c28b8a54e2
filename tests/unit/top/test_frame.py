"""What a frame says, and that nothing in it is obeyed by a terminal."""

from __future__ import annotations

import json
import re
from typing import Any

from support.live_events import row, snapshot, state

from octavo.metrics.live import Picture
from octavo.top.blockmap import COLOURS, LIT, block_map, counted
from octavo.top.figures import CLASSES, as_json, block_counts, duration
from octavo.top.frame import Size, frame
from octavo.top.lines import encoded
from octavo.top.view import View

WIDE, NARROW = Size(200, 40, True), Size(80, 24, True)
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07",
    "[bold red]markup[/] [link=x]",
    "a\r\nq\tb\x9b31m",
    "\u202ereversed\u2066",
    "e\u0301\u200b" * 30,
    "漢字" * 60,
    "",
)


def picture_of(rows: dict[str, Any], tables: dict[str, list[int]], **options: Any) -> Picture:
    fields = options.pop("fields", {})
    num_blocks = options.pop("num_blocks", 64)
    shown = state(num_blocks, rows, **fields)
    text = snapshot(shown, num_blocks=num_blocks, tables=tables, **options)
    picture = Picture()
    picture.apply("snapshot", json.loads(text.split("data: ")[1]))
    return picture


def text_of(picture: Picture, view: View | None = None, size: Size = NARROW, told: str = "") -> str:
    lines = frame(picture, told, view or View(), size, "http://host")
    return "\n".join(encoded(line, None) for line in lines)


def test_hostile_words_are_text() -> None:
    rows = {name: row(client=name, state=name) for name in HOSTILE}
    fields = {"model_names": list(HOSTILE), "status": HOSTILE[0], "problem": HOSTILE[2]}
    picture = picture_of(rows, {name: [3] for name in HOSTILE}, fields=fields)
    for selected in HOSTILE:
        for size in (WIDE, NARROW):
            view = View(selected=selected, confirming=selected, message=selected)
            lines = frame(picture, selected, view, size, "http://host")
            for line in lines:
                assert encoded(line, None).isprintable(), line
                assert sum(segment.cell_length for segment in line) <= size.width
                coloured = re.sub(r"\x1b\[[0-9;]*m", "", encoded(line, "truecolor"))
                assert coloured == encoded(line, None)
            assert len(lines) == size.height
    shown = text_of(picture, size=WIDE)
    assert r"\x1b[2J\x1b]0;owned\x07" in shown and "[bold red]markup[/] [link=x]" in shown


def test_a_frame_is_as_large_as_the_terminal() -> None:
    rows = {f"r{k}": row() for k in range(30)}
    picture = picture_of(rows, {"r0": [1, 2, 3]}, num_blocks=5000)
    for width in (1, 7, 40, 80, 200):
        for height in (1, 2, 5, 14, 24, 60):
            lines = frame(picture, "", View(), Size(width, height, True), "http://host")
            assert len(lines) == height
            assert all(sum(s.cell_length for s in line) <= width for line in lines)


def test_the_selected_request_is_always_in_the_window() -> None:
    rows = {f"r{k:02}": row(arrived_s=float(k)) for k in range(40)}
    picture, view = picture_of(rows, {}), View()
    for keys in (["down"] * 39, ["up"] * 25, ["end"], ["home"], ["page down", "k", "j"]):
        for key in keys:
            view.press(key, picture, 80)
            assert f"▸ {view.selected}" in text_of(picture, view)
    assert view.selected == "r10"


def test_connection_and_engine_faults_are_told() -> None:
    picture = picture_of({}, {}, fields={"status": "restarting", "problem": "it died of signal 9"})
    assert "restarting" in text_of(picture) and "it died of signal 9" in text_of(picture)
    told = text_of(picture, told="no connection: refused; next try in 4 s")
    assert "not connected" in told and "next try in 4 s" in told
    assert "not connected" in text_of(Picture(), told="connecting")


def test_sorting_and_pausing() -> None:
    rows = {
        "a": row(num_prompt_tokens=5, first_token_s=2.0, arrived_s=3.0),
        "b": row(num_prompt_tokens=9, arrived_s=2.0),
        "c": row(num_prompt_tokens=7, first_token_s=1.0, arrived_s=1.0),
    }
    picture, view = picture_of(rows, {}), View()

    def order() -> str:
        return "".join(name for name, _ in view.rows(picture))

    assert order() == "cba", "the oldest first"
    seen = {}
    for _ in range(20):
        view.press("s", picture, 80)
        title = re.search(r"(\w+)▼", text_of(picture, view))
        assert title is not None
        seen[title[1]] = order()
    assert seen["PROMPT"] == "bca" and seen["FIRST"] == "acb" and "CLIENT" not in seen
    while "FIRST▼" not in text_of(picture, view):
        view.press("s", picture, 80)
    view.press("r", picture, 80)
    assert order() == "cab", "what has no value is last either way"
    view.press("p", picture, 80)
    picture.apply("delta", {"state": {"requests": {"rows": {"a": None}}}})
    assert view.frozen is not None and len(view.rows(view.frozen)) == 3
    view.press("p", picture, 80)
    assert view.frozen is None


def test_only_y_aborts() -> None:
    picture, view = picture_of({"a": row()}, {}), View()
    assert view.press("a", picture, 80) is None and view.confirming is None and view.message
    view.press("down", picture, 80)
    for key in ("n", "a", "q", "escape", "up"):
        view.press("a", picture, 80)
        assert view.confirming == "a" and "abort a? y/n" in text_of(picture, view)
        assert view.press(key, picture, 80) is None and view.confirming is None
    view.press("a", picture, 80)
    assert view.press("y", picture, 80) == "a"


def test_cells_count_blocks_by_kind() -> None:
    picture = picture_of({}, {}, num_blocks=12, states={0: 1, 1: 2, 2: 3, 3: 4, 4: 2})
    picture.columns["ref_counts"][4] = 2
    alone = counted(picture, 12, [5, 99])
    kinds = [*CLASSES, "lit"]
    found = [kinds[int(cell.argmax())] for cell in alone]
    assert found == ["cached", "used", "used", "draft", "shared", "lit", *["free"] * 6]
    assert counted(picture, 5, []).sum(axis=1).tolist() == [3, 3, 3, 3]
    assert block_counts(picture)["draft"] == 1
    (line,) = block_map(picture, 6, 1, [5], in_colour=True)
    code = encoded(line, "truecolor")
    for name in ("cached", "used", "draft", "shared"):
        assert "38;2;{};{};{}".format(*COLOURS[name]) in code
    assert "38;2;{};{};{}".format(*LIT) in code
    assert "48;2;{};{};{}".format(*COLOURS["free"]) in code
    (line,) = block_map(picture, 12, 1, [5], in_colour=False)
    assert encoded(line, None) == "-##~=@......"


def test_one_used_block_of_many_is_seen() -> None:
    picture = picture_of({}, {}, num_blocks=100_000, states={50_000: 2})
    lines = block_map(picture, 80, 6, [], in_colour=False)
    assert "".join(encoded(line, None) for line in lines).count("#") == 1
    colours = {s.style for line in block_map(picture, 80, 6, [], in_colour=True) for s in line}
    assert len(colours) >= 2


def test_the_object_is_json() -> None:
    picture = picture_of({"a": row()}, {"a": [1, 2, 3]})
    found = json.loads(json.dumps(as_json(picture, "http://host")))
    assert found["tables"] == {"a": [1, 2, 3]} and found["blocks"]["used"] == 3
    assert found["rates"]["prefix_hit_rate"] == 0.4
    assert found["rates"]["generated_tokens_per_s"] is None


def test_durations_fit_their_columns() -> None:
    for seconds in (None, 0.0, 0.0001234, 0.0994, 0.123, 0.99949, 1.0, 59.94, 99.9, 600, 86400.0):
        assert len(duration(seconds)) <= 6, seconds
