"""``octavo serve`` as its users run it: three processes, real sockets and real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support.checkpoints import write_checkpoint

LONG = {"prompt": "hello", "max_tokens": 400, "n": 16, "ignore_eos": True, "stream": True}
"""Takes seconds, so that something can happen meanwhile."""
WAIT_S = 60.0
"""More than anything here takes on a busy machine."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("serve") / "tiny"
    write_checkpoint(path, "llama")
    return str(path)


def engines(pid: int) -> list[psutil.Process]:
    """The engines among a server's children; another one tries grammars."""
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "octavo.cli.engine_process" in child.cmdline():
                found.append(child)
    return found


@dataclass(slots=True)
class Serving:
    """A server in a process of its own, and the process of its engine."""

    process: subprocess.Popen[str]
    directories: Path
    """Where it makes its socket's directory."""
    url: str = ""
    said: str = ""
    engine: psutil.Process | None = None

    def start(self) -> None:
        """Waits until it is ready."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            found = re.search(r"ready after .* (http://\S+)/v1", line)
            if found:
                self.url = found[1]
                [self.engine] = engines(self.process.pid)
                return
        raise AssertionError(f"not started: {self.said}")

    def end(self) -> int:
        """The exit status, once the server is gone."""
        _, rest = self.process.communicate(timeout=WAIT_S)
        self.said += rest
        return self.process.returncode

    def check_nothing_is_left(self) -> None:
        assert self.engine is not None
        self.engine.wait(WAIT_S)
        assert list(self.directories.iterdir()) == []


@contextmanager
def launched(
    model: str, directories: Path, *flags: str, cwd: Path | None = None
) -> Iterator[Serving]:
    directories.mkdir(exist_ok=True)
    # As the installed script, without the current directory among the places of modules.
    command = [sys.executable, "-P", "-m", "octavo.cli", "serve", model, "--port", "0"]
    limits = ["--num-blocks", "600", "--num-threads", "1"]
    process = subprocess.Popen(
        [*command, *limits, "--served-model-name", "tiny", *flags],
        cwd=cwd,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(directories), "COLUMNS": "200"},
    )
    serving = Serving(process, directories)
    try:
        yield serving
    finally:
        process.kill()
        process.wait()
        if serving.engine is not None:  # gone by now, unless the test has failed
            with suppress(psutil.NoSuchProcess):
                serving.engine.kill()
        if process.stderr is not None:
            process.stderr.close()


def during_a_stream(url: str, act: Callable[[], None]) -> list[Any]:
    """Events of a long stream, during which something happens."""
    events = []
    with (
        httpx.Client(timeout=WAIT_S) as client,
        client.stream("POST", f"{url}/v1/completions", json=LONG) as response,
    ):
        assert response.status_code == 200
        # Not `iter_lines`, which also takes what the model says for ends of lines.
        rest = b""
        for piece in response.iter_bytes():
            *whole, rest = (rest + piece).split(b"\n\n")
            if whole and not events:
                act()
            events += [event.removeprefix(b"data: ") for event in whole]
        assert rest == b""
    return ["[DONE]" if event == b"[DONE]" else json.loads(event) for event in events]


def gauge(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    (value,) = re.findall(rf"^octavo:{name}}} (.*)$", text, re.MULTILINE)
    return float(value)


def test_a_client_that_leaves_frees_its_blocks(model: str, tmp_path: Path) -> None:
    with launched(model, tmp_path / "t") as serving:
        serving.start()
        url, used = serving.url, 'kv_cache_blocks{model_name="tiny",state="used"'
        for stream in (True, False):
            body = json.dumps({**LONG, "stream": stream}).encode()
            host, port = url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port)), WAIT_S) as sock:
                sock.sendall(
                    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                    b"Content-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                )
                while not gauge(url, used):
                    pass
            left = time.monotonic()
            while gauge(url, used):
                assert time.monotonic() - left < 1
        assert gauge(url, 'num_requests_running{model_name="tiny"') == 0
        name = 'request_success_total{finished_reason="abort",model_name="tiny"'
        assert gauge(url, name) == 2 * LONG["n"]
        # Far from the end, so the engine has heard of it.
        generated = gauge(url, 'generation_tokens_total{model_name="tiny"')
        assert generated < LONG["n"] * LONG["max_tokens"]
        assert httpx.get(f"{url}/health").status_code == 200

        assert serving.engine is not None
        processes = (psutil.Process(serving.process.pid), serving.engine)
        before = [process.cpu_times() for process in processes]
        time.sleep(2)
        for process, then in zip(processes, before, strict=True):
            now = process.cpu_times()
            assert now.user + now.system - then.user - then.system < 0.1


def test_a_signal_lets_requests_finish(model: str, tmp_path: Path) -> None:
    with launched(model, tmp_path / "t") as serving:
        serving.start()
        url, late = serving.url, []
        answer = httpx.post(
            f"{url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
            timeout=WAIT_S,
        )
        assert answer.json()["model"] == "tiny"

        def act() -> None:
            serving.process.send_signal(signal.SIGTERM)
            with httpx.Client(timeout=WAIT_S) as client:
                while client.get(f"{url}/health").json()["status"] == "ok":
                    pass
                late.append(client.post(f"{url}/v1/completions", json={"prompt": "a"}))

        *chunks, done = during_a_stream(url, act)
        assert done == "[DONE]"
        ends = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
        assert ends.count("length") == LONG["n"]
        assert late[0].status_code == 503
        assert late[0].json()["error"]["code"] == "shutting_down"
        assert serving.end() == 0
        assert "finishing requests (1 in flight)" in serving.said
        assert "Traceback" not in serving.said and "ERROR" not in serving.said
        serving.check_nothing_is_left()


def test_a_second_signal_ends_requests(model: str, tmp_path: Path) -> None:
    with launched(model, tmp_path / "t") as serving:
        serving.start()

        def act() -> None:
            serving.process.send_signal(signal.SIGINT)
            while httpx.get(f"{serving.url}/health").json()["status"] == "ok":
                pass
            serving.process.send_signal(signal.SIGINT)

        *_, last = during_a_stream(serving.url, act)
        assert last["error"]["code"] == "shutting_down"
        assert serving.end() == 0
        serving.check_nothing_is_left()


def test_the_engine_is_killed(model: str, tmp_path: Path) -> None:
    with launched(model, tmp_path / "t") as serving:
        serving.start()
        url, first = serving.url, serving.engine
        assert first is not None
        *_, last = during_a_stream(url, first.kill)
        assert last["error"]["code"] == "engine_dead"
        assert "SIGKILL" in last["error"]["message"]
        health = httpx.get(f"{url}/health")
        assert health.status_code == 503
        assert health.json()["status"] == "restarting"
        refused = httpx.post(f"{url}/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_restarting"
        assert int(refused.headers["retry-after"]) >= 1
        began = time.monotonic()
        while httpx.get(f"{url}/health").status_code != 200:
            assert time.monotonic() - began < WAIT_S
            time.sleep(0.05)
        [serving.engine] = engines(serving.process.pid)
        assert serving.engine.pid != first.pid
        body = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=WAIT_S).json()
        assert answer["usage"]["completion_tokens"] == 3
        assert gauge(url, 'engine_restarts_total{model_name="tiny"') == 1
        serving.process.send_signal(signal.SIGTERM)
        assert serving.end() == 0
        assert "was killed by SIGKILL" in serving.said and "the engine is back" in serving.said
        serving.check_nothing_is_left()


def test_the_engine_is_killed_and_not_to_be_started_again(model: str, tmp_path: Path) -> None:
    with launched(model, tmp_path / "t", "--max-engine-restarts", "0") as serving:
        serving.start()
        assert serving.engine is not None
        *_, last = during_a_stream(serving.url, serving.engine.kill)
        assert last["error"]["code"] == "engine_dead"
        assert serving.end() == 1
        assert "octavo: EngineDead: the engine process" in serving.said
        assert "Traceback" not in serving.said
        serving.check_nothing_is_left()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_server_is_killed(model: str, tmp_path: Path, is_stopped: bool) -> None:
    """The engine leaves with it, even if it cannot run."""
    # Modules that lie about in the current directory are none of ours.
    (tmp_path / "random.py").write_text("raise SystemExit(1)")
    with launched(model, tmp_path / "t", cwd=tmp_path) as serving:
        serving.start()
        assert serving.engine is not None
        if is_stopped:
            serving.engine.suspend()
            serving.process.kill()
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                during_a_stream(serving.url, serving.process.kill)
        serving.check_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_model_loads(model: str, tmp_path: Path, number: signal.Signals) -> None:
    with launched(model, tmp_path / "t") as serving:
        timer = threading.Timer(WAIT_S, serving.process.kill)
        timer.start()
        while not (found := engines(serving.process.pid)):
            pass
        [serving.engine] = found
        serving.process.send_signal(number)
        status = serving.end()
        timer.cancel()
        assert status == 128 + number
        assert "Traceback" not in serving.said
        serving.check_nothing_is_left()


def test_keys_come_and_go(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice:sk-first\n")
    monkeypatch.setenv("OCTAVO_API_KEY", "sk-env")
    flags = ["--api-key-file", str(keys), "--api-key", "sk-flag", "--access-log"]
    with launched(model, tmp_path / "t", *flags, "--cache-isolation", "key") as serving:
        serving.start()
        assert "3 API keys" in serving.said

        def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            body = {"prompt": "a", "max_tokens": 1}
            url = f"{serving.url}/v1/completions"
            return httpx.post(url, json=body, headers=headers, timeout=WAIT_S).status_code

        def eventually(key: str, wanted: int) -> None:
            deadline = time.monotonic() + WAIT_S
            while status(key) != wanted:
                assert time.monotonic() < deadline
                time.sleep(0.05)

        for key in ("sk-first", "sk-flag", "sk-env"):
            assert status(key) == 200
        assert status("sk-second") == 401
        assert httpx.get(f"{serving.url}/health").status_code == 200
        keys.write_text("alice:sk-second\n")
        serving.process.send_signal(signal.SIGHUP)
        eventually("sk-second", 200)
        assert status("sk-first") == 401
        keys.write_text("alice:sk third\n")
        serving.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert status("sk-second") == 200
        serving.process.send_signal(signal.SIGTERM)
        assert serving.end() == 0
        assert "reload, API keys: all stays as before" in serving.said
        assert "line 1: word 2 is no limit" in serving.said
        assert "401" in serving.said  # the access log
        assert "sk-" not in serving.said and "third" not in serving.said
        serving.check_nothing_is_left()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--api-key-file", "/nowhere/keys"], "api_key_file /nowhere/keys: No such file"),
        (["--ssl-certfile", "/nowhere/cert"], "ssl_certfile /nowhere/cert: No such file"),
        (["--cache-isolation", "key"], "there are no API keys"),
        (["--allowed-origins", "example.com"], "allowed_origins has 'example.com'"),
    ],
)
def test_what_is_said_before_a_model_is_loaded(tmp_path: Path, flags: list[str], said: str) -> None:
    with launched("/no/such/model", tmp_path / "t", *flags) as serving:
        assert serving.end() == 1
        assert said in serving.said
        assert "model" not in serving.said
