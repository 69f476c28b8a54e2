"""The dashboard's files: served to everybody, changed by nobody, and packaged."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.http_client import Client, error_of

import octavo
from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig

FOLDER = Path(octavo.__file__).parent / "dashboard"
Within = Callable[..., Any]
GUARDED = ServerConfig(security=SecurityConfig(api_key=("k",), metrics_key="m"))


def test_the_page_and_all_that_it_loads(within: Within) -> None:
    async def scenario(client: Client) -> None:
        for path in ("/replay", "/", "/dashboard"):
            answer = await client.http.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        text = answer.text + (await client.http.get("/replay")).text
        loaded = set(re.findall(r'(?:src|href)="(dashboard/[^"]+)"', text))
        seen = set[str]()
        while loaded - seen:
            name = (loaded - seen).pop()
            seen.add(name)
            found = await client.http.get(f"/{name}")
            assert found.status_code == 200, name
            loaded |= {f"dashboard/{module}" for module in re.findall(r'"\./(.+\.js)"', found.text)}
        pages = {"dashboard/index.html", "dashboard/replay.html"}
        assert seen == {f"dashboard/{file.name}" for file in FOLDER.iterdir()} - pages

    within(scenario, config=GUARDED)


def test_nothing_comes_from_other_sites() -> None:
    for file in FOLDER.iterdir():
        addresses = re.findall(r"(?:https?:)?//[a-z][^\s\"')]+", file.read_text())
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, file.name
        assert "innerHTML" not in file.read_text() and "style=" not in file.read_text()


def test_files_that_have_not_changed_are_not_sent_again(within: Within) -> None:
    async def scenario(client: Client) -> None:
        first = await client.http.get("/dashboard/app.js")
        again = await client.http.get(
            "/dashboard/app.js", headers={"If-None-Match": first.headers["etag"]}
        )
        assert (again.status_code, again.content) == (304, b"")
        assert (await client.http.head("/")).status_code == 200

    within(scenario)


@pytest.mark.parametrize(
    "name", ["", "x.js", "../app.py", "%2e%2e/app.py", "app.js/", "index.html"]
)
def test_nothing_else_is_served(within: Within, name: str) -> None:
    async def scenario(client: Client) -> None:
        path = f"/dashboard/{name}"
        answer = await client.http.get(path, headers={"Authorization": "Bearer k"})
        assert answer.status_code in (307, 404)
        error_of(await client.http.get(path), 401)

    within(scenario, config=GUARDED)
