"""What a server says is text, whatever it looks like; and how quick the block map is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect
from support.live_events import blocks_of, event, row, snapshot, state
from support.serving import Serving

pytestmark = pytest.mark.real_model

OpenPage = Callable[..., Page]
MARKUP = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>\'"&lt;'
NAMES = (MARKUP, "__proto__", "constructor", "a\u202eb", "'\"];#$%", "x" * 5000)


def serving(body: str) -> Callable[[Page], None]:
    """Lets the page read this instead of the server's stream."""

    def fulfil(route: Route) -> None:
        route.fulfill(body=body, content_type="text/event-stream")

    return lambda page: page.route("**/stats/stream", fulfil)


def is_unharmed(page: Page) -> None:
    assert page.evaluate("window.hit") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.evaluate("({}).state") is None


def test_ids_keys_and_names_are_text(server: Serving, open_page: OpenPage) -> None:
    rows = {
        name: row(client=MARKUP, state=MARKUP, prompt_head=MARKUP, output_tail=MARKUP)
        for name in NAMES
    }
    shown = state(32, rows, model_names=[MARKUP], problem=MARKUP, version=MARKUP)
    tables = {name: [number, 31] for number, name in enumerate(NAMES)}
    body = snapshot(shown, num_blocks=32, tables=tables)
    page = open_page(server.url, prepare=serving(body))
    lines = page.locator("#table tbody tr")
    expect(lines).to_have_count(len(NAMES))
    expect(page.locator("#model")).to_have_text(MARKUP)
    expect(page.locator("#problem")).to_have_text(MARKUP)
    for number in range(len(NAMES)):
        name = lines.nth(number).locator("button.link")
        if name.get_attribute("title") == MARKUP:
            name.click()
            expect(page.locator("#detail p.text").first).to_have_text(MARKUP)
    page.locator("#map").focus()
    page.keyboard.press("End")
    expect(page.locator("#map-say")).to_contain_text("held by")
    page.keyboard.press("Enter")
    expect(page.locator("#detail .chips li")).to_have_count(len(NAMES))
    page.locator("#filter").fill("<img")
    expect(lines).to_have_count(len(NAMES))
    is_unharmed(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_output_and_errors_are_text(server: Serving, open_page: OpenPage) -> None:
    chunk = {"choices": [{"delta": {"content": MARKUP}, "finish_reason": None}]}
    body = event("message", chunk) + event("message", {"error": {"message": MARKUP}})

    def prepare(page: Page) -> None:
        page.route(
            "**/v1/chat/completions",
            lambda route: route.fulfill(body=body, content_type="text/event-stream"),
        )

    page = open_page(server.url, prepare=prepare)
    page.locator("#words").fill(MARKUP)
    page.locator("#send").click()
    expect(page.locator(".turn .words").nth(0)).to_have_text(MARKUP)
    expect(page.locator(".turn .words").nth(1)).to_have_text(MARKUP)
    expect(page.locator(".turn .fault")).to_have_text(MARKUP)
    is_unharmed(page)


def test_a_hundred_thousand_blocks(server: Serving, open_page: OpenPage) -> None:
    """The map is painted whole within a few frames, and what changes within one."""
    count = 100_000
    tables = {"r": list(range(0, 40_000, 2))}
    rows = {"r": row(num_blocks=len(tables["r"]))}
    states = dict.fromkeys(range(50_000, 90_000), 1)
    body = snapshot(state(count, rows), num_blocks=count, tables=tables, states=states)
    page = open_page(server.url, prepare=serving(body))
    expect(page.locator("#cache-line")).to_have_text("100,000 blocks of 16 tokens")
    expect(page.locator("#legend")).to_contain_text("Cached, evictable 40,000")
    times = page.evaluate(MEASURE, blocks_of(list(range(1000, 3000)), [1] * 2000))
    print(times)
    assert times["all"] < 250 and times["some"] < 50


MEASURE = """async (blocks) => {
  const { BlockMap } = await import("/dashboard/blockmap.js");
  const { Picture } = await import("/dashboard/picture.js");
  const picture = new Picture();
  const text = await (await fetch("/stats/stream")).text();
  picture.apply("snapshot", JSON.parse(text.split("\\n")[1].slice(6)));
  const nothing = () => {};
  const map = new BlockMap(document.querySelector("#map"), picture,
    { hover: nothing, select: nothing, cursor: nothing });
  map.layout();
  const median = (act) => {
    const all = [];
    for (let k = 0; k < 9; k++) {
      const began = performance.now();
      act();
      all.push(performance.now() - began);
    }
    return all.sort((a, b) => a - b)[4];
  };
  const whole = median(() => map.paint());
  const some = median(() => map.paint(picture.apply("delta", { state: {}, blocks }).blocks));
  return { all: whole, some };
}"""
