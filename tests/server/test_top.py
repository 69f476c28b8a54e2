"""``octavo top`` at a pseudo-terminal of 80 x 24, over a server with the echo engine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from support.echo_engine import NUM_BLOCKS, Behaviour
from support.fake_engine import Script, listening
from support.terminal import HEIGHT, WIDTH, Session, at_a_terminal

from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig
from octavo.tokenizer.tokenizer import Tokenizer

SLOW = Behaviour(step_s=0.03, max_num_seqs=2)


@contextmanager
def echo_server(tokenizer: Tokenizer, **options: Any) -> Iterator[str]:
    with listening(Script(), tokenizer, echo=SLOW, **options) as (url, _):
        yield url


@contextmanager
def busy(url: str, count: int, **body: Any) -> Iterator[list[dict[str, Any]]]:
    """So many requests at once; their answers are there when the block has been left."""
    body = {"prompt": [5] * 40, "max_tokens": 1900, "ignore_eos": True, **body}
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        answers.append(httpx.post(f"{url}/v1/completions", json=body, timeout=90).json())

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        for row in httpx.get(f"{url}/stats").json()["requests"]["rows"]:
            httpx.post(f"{url}/requests/{row['id'].replace('#', '%23')}/abort")
        for thread in threads:
            thread.join(30)


def rows_of(text: str) -> list[list[str]]:
    """Words of the table's rows that run or wait."""
    return [
        line.split()
        for line in text.split("\n")
        if re.search(r" (running|waiting) +\d\S* +40 ", line)
    ]


def test_it_shows_the_requests_and_the_blocks_that_stats_tells_of(tokenizer: Tokenizer) -> None:
    with echo_server(tokenizer) as url, at_a_terminal("top", url) as user:
        user.until(lambda text: "live" in text and "0 requests" in text)
        with busy(url, 3):
            user.until(lambda text: len(rows_of(text)) == 3)
            stats = httpx.get(f"{url}/stats").json()
            ids = {row["id"] for row in stats["requests"]["rows"]}
            shown = {words[0] for words in rows_of(user.text)}
            assert all(any(part in name for name in ids) for part in shown) and len(shown) == 3
            user.until(lambda text: "running 2  waiting 1" in text)
            decode = r"prefill \S+  decode ([1-9]\S*)  running"
            user.until(lambda text: re.search(decode, text))
        user.until(lambda text: "0 requests" in text)
        blocks = httpx.get(f"{url}/stats").json()["kv_cache"]["blocks"]
        assert blocks["cached"] > 0 and blocks["total"] == NUM_BLOCKS
        legend = f"■ free {blocks['free']:,}  ■ cached {blocks['cached']}  ■ used 0"
        user.until(lambda text: legend in text)
        assert "▀" in user.text


def test_an_abort_has_to_be_confirmed(tokenizer: Tokenizer) -> None:
    with echo_server(tokenizer) as url, at_a_terminal("top", url) as user:
        with busy(url, 1) as answers:
            user.until(lambda text: rows_of(text))
            user.press("a")
            user.until(lambda text: "select a request first" in text)
            user.press("\x1b[B")
            user.until(lambda text: "▸" in text)
            (row,) = httpx.get(f"{url}/stats").json()["requests"]["rows"]
            assert row["id"] in user.text
            user.press("a")
            user.until(lambda text: "y/n" in text)
            user.press("n")
            user.until(lambda text: "q quit" in text)
            assert httpx.get(f"{url}/stats").json()["requests"]["running"] == 1
            user.press("a")
            user.until(lambda text: "y/n" in text)
            user.press("y")
            user.until(lambda text: f"aborted {row['id'][:20]}" in text)
            user.until(lambda text: "has ended" in text)
        assert answers[0]["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("how", ["q", "\x03", "terminated"])
def test_the_terminal_is_given_back(tokenizer: Tokenizer, how: str) -> None:
    with echo_server(tokenizer) as url, at_a_terminal("top", url) as user:
        user.until(lambda text: "live" in text)
        if how == "terminated":
            user.process.send_signal(signal.SIGTERM)
        else:
            user.press(how)
        assert user.end() == {"q": 0, "\x03": 130, "terminated": 128 + signal.SIGTERM}[how]
        assert user.is_restored()
        assert b"Traceback" not in user.raw


def test_a_restart_of_the_server_is_survived(tokenizer: Tokenizer) -> None:
    with echo_server(tokenizer) as url:
        port = int(url.rpartition(":")[2])
        user = Session(("top", url), {})
        user.until(lambda text: "live" in text)
    try:
        user.until(lambda text: "not connected" in text and re.search(r"next try in \d s", text))
        with echo_server(tokenizer, port=port), busy(url, 1):
            user.until(lambda text: " live" in text and len(rows_of(text)) == 1)
            user.press("q")
            assert user.end() == 0
    finally:
        user.close()


def test_it_takes_any_size(tokenizer: Tokenizer) -> None:
    with echo_server(tokenizer) as url, at_a_terminal("top", url) as user, busy(url, 2):
        user.until(lambda text: len(rows_of(text)) == 2)
        for width, height in ((132, 40), (40, 10), (10, 3), (1, 1), (WIDTH, HEIGHT)):
            user.resize(width, height)
            if width > 30:
                user.until(lambda text, width=width: text.split("\n")[-1].startswith("q quit"))
            else:
                user.watch(0.5)
        user.until(lambda text: len(rows_of(text)) == 2)


def test_nothing_is_written_while_nothing_happens(tokenizer: Tokenizer) -> None:
    with echo_server(tokenizer) as url, at_a_terminal("top", url) as user:
        user.until(lambda text: "live" in text and "prefill 0" in text)
        user.watch(0.5)
        assert user.watch(1.5) == b""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo.cli", "top", *arguments]
    known = {**os.environ, "COLUMNS": "80", "LINES": "24", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=known)


def test_one_frame_and_one_object(tokenizer: Tokenizer) -> None:
    with echo_server(tokenizer) as url, busy(url, 2):
        done = run(url, "--once")
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout and len(rows_of(done.stdout)) == 2
        assert re.search(r"decode [1-9]", done.stdout) and "#" in done.stdout
        done = run(url, "--json")
        found, stats = json.loads(done.stdout), httpx.get(f"{url}/stats").json()
        assert set(found["state"]["requests"]["rows"]) == {
            row["id"] for row in stats["requests"]["rows"]
        }
        held = {block for table in found["tables"].values() for block in table}
        assert found["blocks"]["used"] == len(held) > 0
        assert found["rates"]["generated_tokens_per_s"] > 0


def test_a_key_opens_a_server_that_wants_one(tokenizer: Tokenizer) -> None:
    config = ServerConfig(security=SecurityConfig(api_key=("k",)))
    with echo_server(tokenizer, config=config) as url:
        done = run(url, "--json")
        assert done.returncode == 1 and "status 401" in done.stderr and not done.stdout
        assert json.loads(run(url, "--json", "--api-key", "k").stdout)["state"]["status"] == "ok"
        assert run(url, "--once", OCTAVO_API_KEY="k").returncode == 0
        with at_a_terminal("top", url) as user:
            assert user.end() == 1
            assert user.is_restored() and b"status 401" in user.raw


def test_without_a_server_or_a_terminal() -> None:
    done = run("127.0.0.1:1", "--once")
    assert done.returncode == 1
    assert "no connection" in done.stderr and "is an octavo server there" in done.stderr
    done = run("127.0.0.1:1")
    assert done.returncode == 1 and "needs a terminal" in done.stderr
