"""What watching costs the server: microseconds of CPU a streamed token, by what is watched.

Everything from the engine's messages to the client's socket is the real thing; engine and socket do
nothing. Variants take turns, so that what disturbs the machine disturbs all of them. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from octavo import assemble
from octavo.core.cache_plan import CachePlan, MemoryUse
from octavo.core.config import ModelConfig, ServerConfig
from octavo.core.info import EngineInfo
from octavo.core.plan import RequestDelta
from octavo.front.async_engine import AsyncEngine
from octavo.metrics.registry import EngineMetrics
from octavo.metrics.stats import CacheStats, StepStats
from octavo.server import app as app_module
from octavo.server.access.control import Access
from octavo.server.record import Sink
from octavo.server.request_log import RequestLog
from octavo.server.state import ServerState
from octavo.server.tracing import Tracer
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.transport.messages import FromEngine, Inspect, Ready, StepDone, Submit, ToEngine

TOKEN = 905  # some word


class Link:
    """The engine's side: each step gives every request one more token, at once."""

    def __init__(self, info: EngineInfo) -> None:
        self._ready: FromEngine | None = Ready(info)
        self._left: dict[str, int] = {}
        self._work = asyncio.Event()
        self._step = 0

    async def send(self, message: ToEngine) -> None:
        """See `FrontEnd.send`."""
        assert not isinstance(message, Inspect)
        if isinstance(message, Submit):
            assert message.params.max_tokens is not None
            self._left[message.request_id] = message.params.max_tokens
            self._work.set()

    async def receive(self) -> FromEngine:
        """See `FrontEnd.receive`."""
        if self._ready is not None:
            ready, self._ready = self._ready, None
            return ready
        if not self._left:
            self._work.clear()
            await self._work.wait()
        deltas = []
        for name, left in list(self._left.items()):
            is_last = left == 1
            deltas.append(
                RequestDelta(
                    request_id=name,
                    new_token_ids=(TOKEN,),
                    finish_reason="length" if is_last else None,
                    queue_s=0.001,
                    num_cached_tokens=0,
                )
            )
            if is_last:
                del self._left[name]
            else:
                self._left[name] = left - 1
        self._step += 1
        cache = CacheStats(
            num_total_blocks=9, num_free_blocks=3, num_cached_blocks=3, num_used_blocks=3
        )
        stats = StepStats(
            step_id=self._step, num_running=len(deltas), num_waiting=0, cache=cache, num_rows=1
        )
        return StepDone(tuple(deltas), stats)

    def close(self) -> None:
        """See `FrontEnd.close`."""


class Silent(EngineMetrics):
    """Counts nothing."""

    def __getattribute__(self, name: str) -> Any:
        """Whatever observes does nothing."""
        found = super().__getattribute__(name)
        return _nothing if name.startswith("observe") else found


def _nothing(*_args: Any) -> None:
    pass


class Unobserved:
    """Stands in for the middleware that counts."""

    def __init__(self, app: Any, **_options: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hands everything on."""
        await self._app(scope, receive, send)


class Dropping:
    """An exporter that keeps nothing."""

    def export(self, _spans: Any) -> Any:
        """See `SpanExporter.export`."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """See `SpanExporter.shutdown`."""


@contextmanager
def variant(name: str, directory: Path) -> Iterator[tuple[EngineMetrics, tuple[Sink, ...]]]:
    """(metrics, sinks) of what is watched."""
    sinks: list[Sink] = []
    if "traces" in name:
        exporter: Any = Dropping()
        sinks.append(Tracer("http://nowhere", exporter))
    if "log" in name:
        sinks.append(RequestLog(str(directory / "requests.jsonl")))
    try:
        if name == "nothing":
            with mock.patch.object(app_module, "Observer", Unobserved):
                yield Silent("smollm2"), ()
        else:
            yield EngineMetrics("smollm2"), tuple(sinks)
    finally:
        for sink in sinks:
            sink.close()


def make_info(front: assemble.FrontModel) -> EngineInfo:
    """Of an engine that is none."""
    spec = front.checkpoint.spec
    plan = CachePlan(
        num_blocks=9,
        block_size=16,
        bytes_per_block=1,
        max_model_len=spec.max_position,
        utilization=0.5,
        memory=MemoryUse(total_bytes=1, weight_bytes=0, activation_bytes=0),
    )
    return EngineInfo(
        model="smollm2",
        spec=spec,
        cache_plan=plan,
        max_model_len=spec.max_position,
        dtype="float32",
        kv_dtype="float32",
        device="none",
        attention_backend="none",
        num_threads=1,
        max_num_batched_tokens=2048,
        max_num_seqs=256,
    )


async def ask(app: Any, num_tokens: int) -> None:
    """One streaming client."""
    body = json.dumps({"prompt": "a", "max_tokens": num_tokens, "stream": True}).encode()
    sent, gone = False, asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await gone.wait()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(_message: dict[str, Any]) -> None:
        pass

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/completions",
        "query_string": b"",
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "headers": [(b"content-type", b"application/json")],
        "state": {},
    }
    await app(scope, receive, send)


async def microseconds(
    front: assemble.FrontModel, name: str, directory: Path, streams: int, num_tokens: int
) -> float:
    """CPU of one run, a token."""
    with variant(name, directory) as (metrics, sinks):
        engine = AsyncEngine(
            Link(make_info(front)),
            front.tokenizer,
            eos_token_ids=front.checkpoint.eos_token_ids,
            metrics=metrics,
            clock=time.monotonic,
        )
        await engine.start()
        config = ServerConfig()
        state = ServerState(
            engine=engine,
            config=config,
            model_names=("smollm2",),
            generation_defaults={},
            chat_template=ChatTemplate(None, {}),
            access=Access(config.security, config.limits),
            sinks=sinks,
        )
        app = app_module.create_app(state)
        await ask(app, 2)
        gc.collect()
        began = time.process_time()
        await asyncio.gather(*(ask(app, num_tokens) for _ in range(streams)))
        used = time.process_time() - began
        await engine.shutdown()
    return 1e6 * used / (streams * num_tokens)


def main() -> None:
    """Measures and prints medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=9)
    args = parser.parse_args()
    front = assemble.read_front(ModelConfig())
    names = ("nothing", "metrics", "metrics, log", "metrics, log, traces")
    runs: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(args.repeat):
            for name in names if number % 2 else reversed(names):
                work = microseconds(front, name, Path(directory), args.streams, args.tokens)
                runs[name].append(asyncio.run(work))
    best = min(runs["nothing"])
    for name, found in runs.items():
        row = {
            "watched": name,
            "us_per_token": round(statistics.median(found), 2),
            "fastest": round(min(found), 2),
            "more_than_nothing": round(min(found) - best, 2),
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
