"""The dashboard in a real browser, over the real model."""

from __future__ import annotations

import re
import socket
import threading
from array import array
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from support.serving import Serving, served_model

pytestmark = pytest.mark.real_model

OpenPage = Callable[..., Page]
WAIT_MS = 15_000
expect.set_options(timeout=WAIT_MS)


def is_live(page: Page) -> None:
    expect(page.locator("#status")).to_have_text("Live")


def complete(url: str, **body: Any) -> httpx.Response:
    sent = {"model": "smollm2", "prompt": "Once upon a time " * 8, "max_tokens": 40, **body}
    return httpx.post(f"{url}/v1/completions", json=sent, timeout=60)


class Long:
    """A completion that takes long, in a thread."""

    def __init__(self, url: str) -> None:
        self.answer: httpx.Response | None = None
        self._thread = threading.Thread(target=self._run, args=(url,))
        self._thread.start()

    def _run(self, url: str) -> None:
        self.answer = complete(url, max_tokens=800, ignore_eos=True)

    def reason(self) -> Any:
        self._thread.join(60)
        assert self.answer is not None
        return self.answer.json()["choices"][0]["finish_reason"]


def test_cells_agree_with_stats_at_rest(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url)
    is_live(page)
    assert complete(server.url, n=3).status_code == 200
    stats = httpx.get(f"{server.url}/stats").json()["kv_cache"]["blocks"]
    assert stats["used"] == 0 and stats["cached"] > 5
    legend = page.locator("#legend")
    for name in ("free", "cached"):
        word = "Cached, evictable" if name == "cached" else "Free"
        expect(legend).to_contain_text(f"{word} {stats[name]}")
    blocks = httpx.get(f"{server.url}/stats/blocks").json()
    states = list(array("B", b64decode(blocks["states"])))
    colours = page.evaluate(COLOURS)
    assert len(colours["cells"]) == len(states) == blocks["num_blocks"]
    palette = {0: colours["free"], 1: colours["cached"]}
    assert colours["cells"] == [palette[code] for code in states]


COLOURS = """() => {
  const canvas = document.querySelector("#map .base");
  const context = canvas.getContext("2d");
  const hex = (x, y) => "#" + [...context.getImageData(x, y, 1, 1).data.slice(0, 3)]
    .map((part) => part.toString(16).padStart(2, "0")).join("");
  const theme = getComputedStyle(document.documentElement);
  const cells = [];
  const text = document.querySelector("#cache-line").textContent;
  const count = parseInt(text.replace(",", ""));
  const sizes = [18, 15, 13, 11, 9, 8, 7, 6, 5, 4, 3];
  const width = document.querySelector("#map").clientWidth;
  const size = sizes.find((s) => Math.ceil(count / Math.floor(width / s)) * s <= 430);
  const columns = Math.floor(width / size);
  for (let k = 0; k < count; k++) {
    cells.push(hex((k % columns) * size + 1, Math.floor(k / columns) * size + 1));
  }
  return { cells, free: theme.getPropertyValue("--free").trim(),
    cached: theme.getPropertyValue("--cached").trim() };
}"""


def test_a_request_is_seen_lit_and_aborted(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url)
    is_live(page)
    request = Long(server.url)
    line = page.locator("#table tbody tr")
    expect(line).to_have_count(1)
    line.locator("button.link").click()
    detail = page.locator("#detail")
    expect(detail).to_contain_text("Block table, logical → physical")
    row = httpx.get(f"{server.url}/stats").json()["requests"]["rows"][0]
    assert row["num_blocks"] >= 3
    expect(detail.locator("ol.chips li").nth(row["num_blocks"] - 1)).to_be_visible()
    detail.locator("ol.chips button").first.click()
    expect(detail.locator("h3")).to_have_text(re.compile(r"^Block \d+$"))
    expect(detail).to_contain_text(re.compile("In the block table of.*\\[0\\]", re.DOTALL))
    expect(page.locator("#what-if-line")).to_contain_text("1 request running now")
    line.get_by_role("button", name="Abort").click()
    assert request.reason() == "abort"
    expect(line).to_have_count(0)
    expect(page.locator("#requests-none")).to_be_visible()


def test_the_playground_streams_and_compares(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url)
    is_live(page)
    words = page.locator("#words")
    words.fill("Tell me about paper, please.")
    words.press("Enter")
    answer = page.locator(".turn .words").nth(1)
    expect(answer).not_to_be_empty()
    cost = page.locator(".turn .cost").nth(1)
    expect(cost).to_contain_text(re.compile(r"0 of \d+ prompt tokens from the cache"))
    expect(cost).to_contain_text(re.compile(r"first token [\d.]+ m?s.* tokens/s"))
    expect(page.locator("#send")).to_be_enabled(timeout=60_000)
    seen = answer.inner_text()
    words.fill("And again?")
    page.locator("#send").click()
    later = page.locator(".turn .cost").nth(3)
    expect(later).to_contain_text(re.compile(r"[1-9]\d* of \d+ prompt tokens from the cache"))
    expect(page.locator("#send")).to_be_enabled(timeout=60_000)
    assert seen and answer.inner_text() == seen

    page.locator("#compare-two").check()
    for limit in page.get_by_role("spinbutton", name="Tokens").all():
        limit.fill("40")
    words.fill("Count from one to nine, again and again.")
    words.press("Enter")
    verdict = page.locator("#playground > p[role=status]")
    expect(verdict).to_have_text("Both answers are the same, letter by letter.", timeout=60_000)
    expect(page.locator(".turn .cost").nth(3)).to_contain_text("0 of")


def test_an_answer_can_be_stopped(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url)
    is_live(page)
    page.get_by_role("spinbutton", name="Tokens").fill("700")
    page.get_by_role("spinbutton", name="Temperature").fill("1.5")
    page.locator("#words").fill("Write a very long story.")
    page.locator("#send").click()
    expect(page.locator(".turn .words").nth(1)).not_to_be_empty()
    page.locator("#stop").click()
    expect(page.locator("#send")).to_be_enabled()
    expect(page.locator("#table tbody tr")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_accessible_and_readable(
    server: Serving, open_page: OpenPage, theme: Any, width: int
) -> None:
    """Contrast of text is among what is checked."""
    size = {"width": width, "height": 800}
    page = open_page(server.url, color_scheme=theme, viewport=size)
    is_live(page)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    request = Long(server.url)
    name = page.locator("#table tbody button.link")
    expect(name).to_have_count(1)
    name.click()
    page.locator("#compare-two").check()
    found = Axe().run(page).response["violations"]
    serious = [
        (fault["id"], node["html"], node["failureSummary"])
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
    page.get_by_role("button", name="Abort").click()
    assert request.reason() == "abort"
    assert serious == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_keyboard(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url)
    is_live(page)
    said = page.locator("#map-say")
    page.locator("#map").focus()
    for key, block in (("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("End", 599)):
        page.keyboard.press(key)
        expect(said).to_have_text(re.compile(rf"^Block {block}: state "))
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator("#detail h3")).to_have_text("Block 0")
    page.keyboard.press("Escape")
    expect(page.locator("#detail h3")).to_have_text("Nothing selected")
    page.locator("#theme").press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.locator("#theme").press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_page_that_nobody_sees_rests(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url, prepare=lambda page: page.clock.install())
    is_live(page)
    look = """(seen) => {
      Object.defineProperty(document, "visibilityState", { value: seen, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(look, "hidden")
    page.clock.fast_forward(61_000)
    expect(page.locator("#status")).to_have_text("Resting")
    complete(server.url)
    page.evaluate(look, "visible")
    is_live(page)
    cached = httpx.get(f"{server.url}/stats").json()["kv_cache"]["blocks"]["cached"]
    expect(page.locator("#legend")).to_contain_text(f"Cached, evictable {cached}")


def test_it_survives_a_restart_of_the_server(open_page: OpenPage) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with served_model("--port", port) as first:
        page = open_page(first.url, expects=("ERR_",))
        is_live(page)
        complete(first.url)
        assert first.end() == 0
    expect(page.locator("#status")).to_have_text("Offline")
    with served_model("--port", port):
        expect(page.locator("#status")).to_have_text("Live", timeout=30_000)
        expect(page.locator("#legend")).to_contain_text("Cached, evictable 0")


def test_keys_are_asked_for_and_stay_in_the_tab(open_page: OpenPage) -> None:
    with served_model("--api-key", "sk-one") as server:
        page = open_page(server.url, expects=("401", "ERR_"))
        dialog = page.locator("#key-dialog")
        expect(dialog).to_contain_text("there is no API key")
        dialog.get_by_role("button", name="Cancel").click()
        page.locator("#unlock").click()
        dialog.get_by_label("Key", exact=True).fill("sk-wrong")
        dialog.get_by_role("button", name="Use key").click()
        expect(dialog).to_contain_text("none of this server's")
        dialog.get_by_label("Key", exact=True).fill("sk-one")
        page.keyboard.press("Enter")
        is_live(page)
        page.locator("#words").fill("Hi")
        page.locator("#words").press("Enter")
        expect(page.locator(".turn .words").nth(1)).not_to_be_empty()
        kept = page.evaluate("[{...sessionStorage}, {...localStorage}, document.cookie]")
        assert "sk-one" in kept[0].values() and kept[1:] == [{}, ""]
        assert "sk-one" not in page.url and "sk-one" not in page.content()
