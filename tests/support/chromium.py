"""A real browser, if this machine has one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium() -> str | None:
    """Where it is: what OCTAVO_TEST_CHROMIUM says, or the first on the path."""
    return os.environ.get("OCTAVO_TEST_CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), None
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser; skips the test without one."""
    path = find_chromium()
    if path is None:
        pytest.skip(
            "no Chromium is on this machine: apt-get install chromium, or name one in "
            "OCTAVO_TEST_CHROMIUM"
        )
    with sync_playwright() as playwright:
        # As root, which containers often are, Chromium runs only without its sandbox.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
