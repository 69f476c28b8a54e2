"""Streams over real sockets: framing, clients that leave, and clients that do not read."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.fake_engine import MODEL, Script, Served, listening
from support.http_client import chat_body, events_of

from octavo.tokenizer.tokenizer import Tokenizer

ENDLESS = {"model": MODEL, "prompt": "ab", "max_tokens": 100_000}
LONG = 200_000


@pytest.fixture
def script() -> Script:
    return Script(step_s=0.002)


@pytest.fixture
def server(script: Script, tokenizer: Tokenizer) -> Iterator[tuple[str, Served]]:
    with listening(script, tokenizer, max_model_len=LONG) as found:
        yield found


def connect(address: str, path: str, body: dict[str, Any], **options: int) -> socket.socket:
    """A socket on which a request has been sent, and nothing read."""
    where = urlsplit(address)
    sock = socket.socket()
    for name, value in options.items():
        sock.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    sock.settimeout(10)
    sock.connect((where.hostname, where.port))
    raw = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\n\r\n"
    )
    sock.sendall(head.encode() + raw)
    return sock


def eventually(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_the_bytes_on_the_wire(server: tuple[str, Served]) -> None:
    body = chat_body("hi\n\ndata: 😀\r\n", stream=True)
    with connect(server[0], "/v1/chat/completions", body) as sock:
        raw = b""
        while not raw.endswith(b"0\r\n\r\n"):
            piece = sock.recv(65536)
            assert piece
            raw += piece
    head, _, rest = raw.partition(b"\r\n\r\n")
    headers = head.decode().lower().split("\r\n")
    assert headers[0].startswith("http/1.1 200")
    assert "content-type: text/event-stream; charset=utf-8" in headers
    assert "cache-control: no-cache" in headers
    assert "transfer-encoding: chunked" in headers
    content = b""
    while rest != b"0\r\n\r\n":
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        content, rest = content + rest[:length], rest[length + 2 :]
    chunks = events_of(content)
    text = "".join(choice["delta"]["content"] for c in chunks for choice in c["choices"])
    assert text == "user\nhi\n\ndata: 😀\r\n"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "body",
    [ENDLESS, {**ENDLESS, "n": 3}, {**ENDLESS, "prompt": ["ab", "cd"], "n": 2}],
    ids=["one", "n", "prompts"],
)
def test_a_client_that_leaves_ends_its_request(
    server: tuple[str, Served], script: Script, body: dict[str, Any], stream: bool
) -> None:
    address, parts = server
    num_runs = body.get("n", 1) * (2 if isinstance(body["prompt"], list) else 1)
    with connect(address, "/v1/completions", {**body, "stream": stream}) as sock:
        if stream:
            assert sock.recv(100)
        eventually(lambda: len(parts.link.running) == num_runs)
    eventually(lambda: not parts.link.running)
    assert len(script.aborted) == len(set(script.aborted)) == num_runs
    eventually(lambda: parts.state.engine.num_open == 0)


def test_a_client_that_leaves_while_its_prompt_waits(tokenizer: Tokenizer) -> None:
    script = Script(step_s=60.0)
    with listening(script, tokenizer) as (address, parts):
        with connect(address, "/v1/completions", {**ENDLESS, "max_tokens": 9, "stream": True}):
            eventually(lambda: parts.link.running)
        eventually(lambda: not parts.link.running)


def test_a_client_that_does_not_read_costs_little(tokenizer: Tokenizer) -> None:
    """What it has not read is kept by the front end in one piece; the rest stays unmade."""
    script = Script(step_s=0.0)
    body = {**ENDLESS, "max_tokens": LONG - 10, "stream": True}
    with listening(script, tokenizer, max_model_len=LONG) as (address, parts):
        with connect(address, "/v1/completions", body, SO_RCVBUF=4096) as sock:
            eventually(lambda: parts.link.running)
            (request,) = parts.state.engine._requests._outputs._requests.values()
            (stream,) = parts.state.engine._requests._streams.values()
            generated = request.output.outputs[0].token_ids
            eventually(lambda: len(generated) > 5000)
            num_sent = len(generated) - sum(len(delta.token_ids) for delta in stream.pending)
            # What the buffers of sockets and server hold, at some 150 bytes a token.
            assert num_sent < 2000
            assert len(stream.pending) <= 64
            assert sock.recv(100)
        eventually(lambda: not parts.link.running)
        assert parts.state.engine.num_open == 0


def test_answers_keep_the_connection(server: tuple[str, Served]) -> None:
    body = {"model": MODEL, "prompt": "ab", "max_tokens": 2, "stream": True}
    with connect(server[0], "/v1/completions", body) as sock:
        for _ in range(3):
            raw = b""
            while not raw.endswith(b"0\r\n\r\n"):
                raw += sock.recv(65536)
            assert b"[DONE]" in raw
            again = json.dumps(body).encode()
            sock.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
                + f"Content-Length: {len(again)}\r\n\r\n".encode()
                + again
            )
