"""What the door costs a request, by what it has to check. Prints JSON, microseconds."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from types import SimpleNamespace
from typing import Any

from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.config import ServerConfig
from octavo.metrics.registry import EngineMetrics
from octavo.server.access.control import Access
from octavo.server.access.guard import Guard
from octavo.server.app import create_app
from octavo.server.state import ServerState
from octavo.tokenizer.chat_template import ChatTemplate

NUM_KEYS = 1000
RATES = {"requests_per_minute_per_key": 10**9, "tokens_per_minute_per_key": 10**9}
HEADERS = [
    (b"host", b"127.0.0.1:8000"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"accept", b"application/json"),
    (b"content-type", b"application/json"),
    (b"user-agent", b"OpenAI/Python 2.0.0"),
    *((b"x-stainless-%d" % number, b"something") for number in range(8)),
    (b"authorization", b"Bearer sk-7"),
    (b"content-length", b"200"),
]
SCOPE: dict[str, Any] = {
    "type": "http",
    "http_version": "1.1",
    "scheme": "http",
    "query_string": b"",
    "root_path": "",
    "headers": HEADERS,
}


async def endpoint(_scope: Any, _receive: Any, send: Any) -> None:
    """Answers as little as possible."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def receive() -> dict[str, Any]:
    """An empty body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def send(_message: dict[str, Any]) -> None:
    """A client that reads everything."""


async def microseconds(app: Any, path: str, method: str, repeat: int) -> float:
    """Median of five runs of ``repeat`` requests."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(repeat):
            # A new one for each request, as from a socket: the door writes into its state.
            scope = {**SCOPE, "method": method, "path": path, "state": {}}
            await app(scope, receive, send)
        times.append((time.perf_counter() - began) / repeat)
    return round(1e6 * statistics.median(times), 2)


def whole_app(security: SecurityConfig, limits: LimitsConfig) -> Any:
    """The server, without an engine: for paths that need none."""
    engine: Any = SimpleNamespace(metrics=EngineMetrics("none"))
    state = ServerState(
        engine=engine,
        config=ServerConfig(security=security, limits=limits),
        model_names=("none",),
        generation_defaults={},
        chat_template=ChatTemplate(None, {}),
        access=Access(security, limits),
    )
    return create_app(state)


async def measure(repeat: int) -> dict[str, float]:
    """By what is checked."""
    none, some = LimitsConfig(), LimitsConfig(**RATES)
    many = SecurityConfig(api_key=tuple(f"sk-{number}" for number in range(NUM_KEYS)))
    one, other = SecurityConfig(api_key=("sk-7",)), SecurityConfig(api_key=("sk-8",))
    post = "/v1/completions", "POST", repeat
    get = "/version", "GET", repeat
    return {
        "an endpoint that does nothing": await microseconds(endpoint, *post),
        "behind one key": await microseconds(Guard(endpoint, Access(one, none)), *post),
        f"behind {NUM_KEYS} keys": await microseconds(Guard(endpoint, Access(many, none)), *post),
        "with rates": await microseconds(Guard(endpoint, Access(one, some)), *post),
        "refused": await microseconds(Guard(endpoint, Access(other, none)), *post),
        "GET /version of the server": await microseconds(whole_app(SecurityConfig(), none), *get),
        "the same with a key": await microseconds(whole_app(one, none), *get),
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=2000)
    args = parser.parse_args()
    print(json.dumps(asyncio.run(measure(args.repeat)), indent=2))


if __name__ == "__main__":
    main()
