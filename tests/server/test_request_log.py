from __future__ import annotations

import datetime
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.aio import aio
from support.echo_engine import Behaviour
from support.whole_server import whole_server

from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig
from octavo.core.errors import ConfigError
from octavo.core.observe_config import ObservabilityConfig
from octavo.server import request_log
from octavo.server.record import RequestRecord
from octavo.server.request_log import RequestLog
from octavo.server.sinks import make_sinks
from octavo.tokenizer.tokenizer import Tokenizer

SECRET = "the secret of the prompt"


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    before = threading.active_count()
    yield tmp_path / "requests.jsonl"
    assert threading.active_count() == before, "a log's thread is left"


def lines(target: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in target.read_text().splitlines()]


def record(**fields: Any) -> RequestRecord:
    given = {"method": "POST", "path": "/v1/completions", "arrival": 0.0, "address": None}
    return RequestRecord(**{**given, "headers": (), **fields})


def test_what_a_line_tells(tokenizer: Tokenizer, target: Path) -> None:
    @aio
    async def scenario() -> None:
        log = RequestLog(str(target))
        config = ServerConfig(security=SecurityConfig(api_key=("k",)))
        async with whole_server(tokenizer, sinks=(log,), config=config) as whole:
            headers = {"Authorization": "Bearer k", "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
            body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4, "n": 2}
            for _ in range(2):
                answer = await whole.http.post(
                    "/v1/chat/completions", json=body | {"ignore_eos": True}, headers=headers
                )
            await whole.http.post("/v1/completions", json={"prompt": SECRET})
        log.close()
        usage = answer.json()["usage"]
        first, second, refused = lines(target)
        assert second["id"] == answer.json()["id"] and second["id"] != first["id"]
        assert second["endpoint"] == "/v1/chat/completions" and second["model"] == "echo"
        assert second["status"] == 200 and second["error"] is None
        assert second["prompt_tokens"] == usage["prompt_tokens"]
        assert second["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] > 0
        assert second["completion_tokens"] == usage["completion_tokens"] == 8
        assert second["finish_reasons"] == ["length", "length"]
        assert 0 <= second["queue_s"] <= second["first_token_s"] <= second["total_s"] < 10
        assert second["client"].startswith("key-") and second["address"] == "127.0.0.1"
        assert second["trace_id"] == "ab" * 16
        at = datetime.datetime.fromisoformat(second["time"])
        assert abs(at.timestamp() - time.time()) < 60
        assert (refused["status"], refused["id"], refused["client"]) == (401, None, None)
        assert (refused["completion_tokens"], refused["first_token_s"]) == (0, None)
        assert set(first) == set(refused)
        text = target.read_text()
        assert (
            "secret" not in text and answer.json()["choices"][0]["message"]["content"] not in text
        )

    scenario()


def test_errors_and_clients_that_left(tokenizer: Tokenizer, target: Path) -> None:
    @aio
    async def scenario() -> None:
        log = RequestLog(str(target))
        async with whole_server(tokenizer, Behaviour(step_s=0.01), sinks=(log,)) as whole:
            body = {"prompt": [5] * 5, "max_tokens": 2000, "timeout": 1.0, "stream": True}
            assert "request_timeout" in (await whole.http.post("/v1/completions", json=body)).text
        log.close()
        (line,) = lines(target)
        assert (line["status"], line["error"]) == (200, "request_timeout")
        assert line["finish_reasons"] == ["abort"] and line["completion_tokens"] > 0

    scenario()


def test_lines_are_added_and_whole(target: Path) -> None:
    target.write_text("{}\n")
    log = RequestLog(str(target))
    for number in range(500):
        log.record(record(total_s=number))
    log.close()
    log.close()
    found = lines(target)
    assert found[0] == {} and [line["total_s"] for line in found[1:]] == list(range(500))


def test_a_file_that_is_moved_away_is_made_anew(target: Path) -> None:
    log = RequestLog(str(target))
    log.record(record(total_s=1))
    while not target.read_text():
        time.sleep(0.005)
    moved = target.rename(target.with_suffix(".1"))
    log.record(record(total_s=2))
    while not target.exists() or not target.read_text():
        time.sleep(0.005)
    target.unlink()
    log.record(record(total_s=3))
    log.close()
    assert [line["total_s"] for line in (*lines(moved), *lines(target))] == [1, 3]


def test_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = RequestLog("-")
    log.record(record(status=204))
    log.close()
    (line,) = capfdbinary.readouterr().out.splitlines()
    assert json.loads(line)["status"] == 204


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"request_log .*nowhere/log: No such file"):
        RequestLog(str(tmp_path / "nowhere/log"))
    with pytest.raises(ConfigError, match="request_log is empty"):
        ObservabilityConfig(request_log="")


def test_a_full_disk_is_told_once_and_harms_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RequestLog, "_follow", lambda self: None)
    log = RequestLog("/dev/full")
    for _ in range(3):
        log.record(record())
        while not log._lines.empty():
            time.sleep(0.005)
    log.close()
    assert "No space left" in caplog.text


def test_what_the_writer_cannot_keep_up_with_is_dropped_and_told(
    target: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "MAX_LINES", 5)
    gate = threading.Event()
    follow = RequestLog._follow
    monkeypatch.setattr(RequestLog, "_follow", lambda self: (gate.wait(10), follow(self)))
    log = RequestLog(str(target))
    with caplog.at_level(logging.ERROR):
        began = time.monotonic()
        for _ in range(20):
            log.record(record())
        assert time.monotonic() - began < 1
    gate.set()
    log.close()
    assert 14 <= log.num_dropped <= 15
    assert len(lines(target)) == 20 - log.num_dropped
    assert caplog.text.count("cannot keep up") == 1


def test_nothing_is_kept_unless_wanted(target: Path) -> None:
    assert make_sinks(ObservabilityConfig()) == ()
    (log,) = make_sinks(ObservabilityConfig(request_log=str(target)))
    assert isinstance(log, RequestLog)
    log.close()
