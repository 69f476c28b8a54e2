from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from support.chromium import chromium, find_chromium
from support.serving import Serving, served_model

OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    if find_chromium() is None:
        pytest.skip("no Chromium is on this machine: apt-get install chromium")
    with served_model("--speculative-config", '{"method": "ngram"}') as found:
        yield found


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens the dashboard of a server. Whatever goes wrong in the page fails the test, but for
    complaints in ``expects``."""
    complaints: list[str] = []
    expected: list[str] = []
    contexts = []

    def open_(
        url: str, *, expects: tuple[str, ...] = (), prepare: Any = None, **options: Any
    ) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        expected.extend(expects)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: complaints.append(message.text) if message.type == "error" else None,
        )
        if prepare is not None:
            prepare(page)
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    left = [text for text in complaints if not any(known in text for known in expected)]
    assert left == []
