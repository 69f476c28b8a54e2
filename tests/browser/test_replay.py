"""The replay of recorded traces in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from support.chromium import find_chromium
from support.engines import Harness
from support.fake_engine import Script, listening, make_tokenizer

import octavo
from octavo.timeline.chrome import to_chrome
from octavo.timeline.events import StepEvent

OpenPage = Callable[..., Page]
SAMPLE = Path(octavo.__file__).parent / "dashboard" / "sample.json"
MARKUP = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'
expect.set_options(timeout=15_000)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if find_chromium() is None:
        pytest.skip("no Chromium is on this machine: apt-get install chromium")
    with listening(Script(), make_tokenizer()) as (url, _):
        yield url


def recorded(*names: str, num_blocks: int = 14) -> dict[str, Any]:
    """Chunks, a shared prefix and preemptions; the first two prompts are the same."""
    harness = Harness(num_blocks=num_blocks, block_size=4, max_num_batched_tokens=16)
    steps: list[StepEvent] = []
    harness.engine.record(steps.append)
    for number, name in enumerate(names):
        prompt = list(range(30)) if number < 2 else [7, 8, 9]
        harness.add(name, prompt, params={"max_tokens": 12})
    harness.run()
    return to_chrome(steps)


def decisions(trace: dict[str, Any]) -> list[dict[str, Any]]:
    events = [event for event in trace["traceEvents"] if "decision" in event.get("args", {})]
    return [event["args"]["decision"] for event in events]


def choose(page: Page, content: Any, name: str = "trace.json") -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    file = {"name": name, "mimeType": "application/json", "buffer": text.encode()}
    page.locator("#file").set_input_files([file])  # type: ignore[list-item]


def position(page: Page) -> int:
    return int(page.locator("#slider").input_value())


def test_the_sample_is_small_and_steps_agree_with_it(address: str, open_page: OpenPage) -> None:
    trace = json.loads(SAMPLE.read_text())
    assert SAMPLE.stat().st_size < 100_000
    found = decisions(trace)
    page = open_page(f"{address}/replay")
    expect(page.locator("#source")).to_have_text("The sample")
    states = {"free": set(range(trace["otherData"]["octavo"]["num_blocks"])), "cached": set()}
    for number, decision in enumerate(found):
        expect(page.locator("#where")).to_contain_text(f"{number + 1} of {len(found)}")
        expect(page.locator("#rows li")).to_have_count(len(decision["rows"]))
        tokens = sum(row["tokens"] for row in decision["rows"])
        expect(page.locator("#budget-line")).to_contain_text(f"{tokens} of 128 tokens")
        expect(page.locator("#line li")).to_have_count(len(decision.get("line", [])))
        for name, blocks in decision.get("states", {}).items():
            for kept in states.values():
                kept -= set(blocks)
            states.setdefault(name, set()).update(blocks)
        for name, word in (("free", "Free"), ("cached", "Cached, evictable")):
            expect(page.locator("#legend")).to_contain_text(f"{word} {len(states[name])}")
        page.keyboard.press("ArrowRight")
    words = page.locator("#words")
    page.keyboard.press("Home")
    expect(words).to_contain_text("offline-1's prompt was cut: 124 of 151 tokens fit")
    expect(words).to_contain_text("wait: the 128 tokens of the step are spent.")
    page.keyboard.press("ArrowRight")
    expect(words).to_contain_text("offline-2 begins with 112 cached tokens in 7 blocks, of 150.")
    expect(page.locator("#tables .hit")).to_have_count(7)


def test_what_blocks_and_preemptions_are_told_of(address: str, open_page: OpenPage) -> None:
    trace = recorded("long", "same", "short")
    found = decisions(trace)
    page = open_page(f"{address}/replay")
    choose(page, trace)
    expect(page.locator("#source")).to_have_text("trace.json")
    at = next(k for k, decision in enumerate(found) if "preempted" in decision)
    for _ in range(at):
        page.keyboard.press("ArrowRight")
    (item, *_) = found[at]["preempted"]
    other = f"so that {item['for']} can go on" if item["for"] != item["id"] else "and waits"
    gave = f"{item['id']} gave back {item['blocks']} block"
    expect(page.locator("#words")).to_contain_text(gave)
    expect(page.locator("#words")).to_contain_text(other)
    tables = page.locator("#tables .table")
    shown = tables.count()
    page.keyboard.press("End")
    expect(page.locator("#tables")).to_have_text("Nobody holds a block.")
    page.keyboard.press("Home")  # far back and forth again: the same
    for _ in range(at):
        page.keyboard.press("ArrowRight")
    expect(tables).to_have_count(shown)
    page.locator("#rows button").first.click()
    expect(page.locator("#tables button[aria-pressed=true]")).to_have_count(1)
    page.locator("#map").focus()
    page.keyboard.press("Home")
    expect(page.locator("#map-say")).to_contain_text("Block 0: ")


def test_keyboard_and_playing(address: str, open_page: OpenPage) -> None:
    page = open_page(f"{address}/replay")
    expect(page.locator("#source")).to_have_text("The sample")
    page.keyboard.press("End")
    last = position(page)
    assert last == len(decisions(json.loads(SAMPLE.read_text()))) - 1
    page.keyboard.press("ArrowLeft")
    assert position(page) == last - 1
    page.locator("#slider").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert position(page) == 1
    expect(page.locator("#where")).to_contain_text("2 of")
    page.locator("#speed").select_option("20")
    page.locator("#slider").focus()
    page.keyboard.press(" ")
    expect(page.locator("#where")).to_contain_text(f"{last + 1} of")
    expect(page.locator("#play")).to_have_text("Play")  # it stops at the end
    page.keyboard.press("Home")
    page.locator("#speed").select_option("0.5")
    page.locator("#slider").focus()
    page.keyboard.press(" ")
    expect(page.locator("#play")).to_have_text("Pause")
    page.keyboard.press(" ")
    expect(page.locator("#play")).to_have_text("Play")
    page.locator("#last").click()
    assert position(page) == last
    page.locator("#first").click()
    assert position(page) == 0 and page.locator("#back").is_disabled()


def test_a_hostile_file_is_text(address: str, open_page: OpenPage) -> None:
    page = open_page(f"{address}/replay")
    trace = recorded(MARKUP, "__proto__", "x" * 5000, num_blocks=64)
    for decision in decisions(trace):
        decision["stopped"] = "constructor"
        for item in decision.get("ended", []):
            item["reason"] = MARKUP
        for row in decision["rows"]:
            row.setdefault("new_blocks", []).extend([-1, 1e99, "0", None, 10**12])
    choose(page, trace, MARKUP + ".json")
    expect(page.locator("#source")).to_have_text(MARKUP + ".json")
    expect(page.locator("#tables button").first).to_have_attribute("title", MARKUP)
    for _ in decisions(trace):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#words")).to_contain_text("has ended: ")
    assert page.evaluate("window.hit") is None
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    assert page.evaluate("({}).id") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "It is no JSON"),
        ({"traceEvents": []}, "It was not written by octavo trace"),
        ({"traceEvents": [], "otherData": {"octavo": {"format": 99}}}, "This page reads format 1"),
        ({"traceEvents": [], "otherData": {"octavo": {"format": 1}}}, "It tells of 0 KV blocks"),
    ],
)
def test_files_that_cannot_be_replayed(
    address: str, open_page: OpenPage, content: Any, why: str
) -> None:
    page = open_page(f"{address}/replay")
    expect(page.locator("#source")).to_have_text("The sample")
    choose(page, content)
    expect(page.locator("#problem")).to_contain_text(f"trace.json cannot be replayed. {why}")
    expect(page.locator("#source")).to_have_text("The sample")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_accessible_and_readable(address: str, open_page: OpenPage, theme: Any, width: int) -> None:
    size = {"width": width, "height": 800}
    page = open_page(f"{address}/replay", color_scheme=theme, viewport=size)
    expect(page.locator("#source")).to_have_text("The sample")
    page.keyboard.press("ArrowRight")
    found = Axe().run(page).response["violations"]
    serious = [
        (fault["id"], node["html"], node["failureSummary"])
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
    assert serious == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
