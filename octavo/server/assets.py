"""Files of the dashboard, read once: nothing else is ever served from the disk."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
}
PREFIX = "/dashboard"
_PAGES = {"index.html": ("/", PREFIX), "replay.html": ("/replay",)}
"""Where pages are served; all else has its name."""


class Asset(NamedTuple):
    """A file as it is served."""

    body: bytes
    content_type: str
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """All files by the paths that they are served at."""
    found = {}
    for file in (resources.files("octavo") / "dashboard").iterdir():
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            for path in _PAGES.get(file.name, (f"{PREFIX}/{file.name}",)):
                found[path] = Asset(body, kind, etag)
    return found
