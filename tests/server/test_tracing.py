from __future__ import annotations

import asyncio
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.aio import aio
from support.echo_engine import Behaviour
from support.whole_server import Whole, whole_server

from octavo.core.errors import ConfigError
from octavo.core.observe_config import ObservabilityConfig
from octavo.server.tracing import Tracer, traces_url
from octavo.tokenizer.tokenizer import Tokenizer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CHAT = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 4, "ignore_eos": True}


def traced(tokenizer: Tokenizer, scenario: Any, behaviour: Behaviour | None = None) -> Any:
    """The spans that a scenario left, by name."""
    exporter = InMemorySpanExporter()
    tracer = Tracer("http://unused", exporter)

    @aio
    async def main() -> None:
        async with whole_server(tokenizer, behaviour, sinks=(tracer,)) as whole:
            await scenario(whole)

    main()
    tracer.close()
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def test_a_trace_of_a_request(tokenizer: Tokenizer) -> None:
    async def scenario(whole: Whole) -> None:
        for _ in range(2):
            answer = await whole.http.post(
                "/v1/chat/completions", json={**CHAT, "temperature": 0.5, "seed": 7}
            )
            assert answer.status_code == 200
        await whole.http.get("/health")

    spans = traced(tokenizer, scenario)
    assert {name: len(found) for name, found in spans.items()} == {
        "chat echo": 2,
        "queue": 2,
        "prefill": 2,
        "decode": 2,
    }
    root = spans["chat echo"][1]
    assert root.kind is SpanKind.SERVER and root.parent is None
    assert root.status.status_code is StatusCode.UNSET
    attributes = dict(root.attributes)
    assert attributes.pop("gen_ai.response.id").startswith("chatcmpl-")
    prompt = attributes.pop("gen_ai.usage.input_tokens")
    assert 0 < attributes.pop("gen_ai.usage.cache_read.input_tokens") < prompt
    assert attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "echo",
        "gen_ai.response.model": "echo",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.seed": 7,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.output_tokens": 4,
    }
    parts = [spans[name][1] for name in ("queue", "prefill", "decode")]
    assert all(part.parent.span_id == root.context.span_id for part in parts)
    assert all(part.context.trace_id == root.context.trace_id for part in parts)
    queue, prefill, decode = parts
    (event,) = root.events
    assert event.name == "gen_ai.first_token"
    assert root.start_time <= queue.start_time <= queue.end_time == prefill.start_time
    assert prefill.start_time <= prefill.end_time == decode.start_time == event.timestamp
    assert decode.end_time <= root.end_time
    assert "secret" not in "".join(map(str, [root.attributes, *(p.attributes for p in parts)]))
    assert root.resource.attributes["service.name"] == "octavo"


@pytest.mark.parametrize(
    ("header", "is_child", "is_recorded"),
    [
        (f"00-{TRACE}-{PARENT}-01", True, True),
        (f"00-{TRACE}-{PARENT}-00", True, False),
        ("00-zz-1-01", False, True),
        (f"00-{'0' * 32}-{PARENT}-01", False, True),
    ],
    ids=["sampled", "not sampled", "malformed", "zeros"],
)
def test_the_callers_trace_is_joined(
    tokenizer: Tokenizer, header: str, is_child: bool, is_recorded: bool
) -> None:
    async def scenario(whole: Whole) -> None:
        await whole.http.post("/v1/chat/completions", json=CHAT, headers={"traceparent": header})

    spans = traced(tokenizer, scenario)
    assert bool(spans) == is_recorded
    if is_recorded:
        (root,) = spans["chat echo"]
        assert (f"{root.context.trace_id:032x}" == TRACE) == is_child
        assert (root.parent is not None) == is_child
        if is_child:
            assert f"{root.parent.span_id:016x}" == PARENT


def test_errors_have_a_type_and_only_the_parts_that_they_came_to(tokenizer: Tokenizer) -> None:
    async def scenario(whole: Whole) -> None:
        late = {**CHAT, "max_tokens": 2000, "timeout": 0.05}
        assert (await whole.http.post("/v1/chat/completions", json=late)).status_code == 504
        wrong = {"prompt": "a", "temperature": -1}
        assert (await whole.http.post("/v1/completions", json=wrong)).status_code == 400
        text = {"prompt": [[5], [6, 7]], "max_tokens": 1}
        assert (await whole.http.post("/v1/completions", json=text)).status_code == 200
        assert (await whole.http.post("/tokenize", json={"prompt": "a"})).status_code == 200

    spans = traced(tokenizer, scenario)
    late, *_ = spans["chat echo"]
    assert late.status.status_code is StatusCode.ERROR
    assert late.attributes["error.type"] == "request_timeout"
    refused, text = spans["text_completion echo"]
    assert refused.attributes["http.response.status_code"] == 400
    assert refused.status.status_code is StatusCode.UNSET, "the client's fault is no server's error"
    assert text.attributes["gen_ai.usage.input_tokens"] == 3
    below = [s for s in spans["prefill"] if s.parent.span_id == text.context.span_id]
    assert len(below) == 2
    assert "POST /tokenize" in spans


def test_a_request_that_never_began_has_waited_all_the_time(tokenizer: Tokenizer) -> None:
    async def scenario(whole: Whole) -> None:
        first = asyncio.create_task(
            whole.http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1000})
        )
        while whole.value("num_requests_running") < 1:
            await asyncio.sleep(0.005)
        late = await whole.http.post("/v1/chat/completions", json={**CHAT, "timeout": 0.1})
        assert late.status_code == 504
        first.cancel()

    spans = traced(tokenizer, scenario, Behaviour(max_num_seqs=1, step_s=0.002))
    (late,) = (s for s in spans["chat echo"] if s.attributes["http.response.status_code"] == 504)
    below = {
        name: [s for s in found if s.parent and s.parent.span_id == late.context.span_id]
        for name, found in spans.items()
    }
    (queue,) = below["queue"]
    assert below["prefill"] == below.get("decode", []) == []
    assert queue.end_time - queue.start_time > 0.09e9


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An HTTP server that keeps what it is sent."""
    got: list[tuple[str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_collector_gets_them_as_protobuf(tokenizer: Tokenizer) -> None:
    with collector() as (url, got):
        (tracer,) = sinks = _sinks(url)

        @aio
        async def main() -> None:
            async with whole_server(tokenizer, sinks=sinks) as whole:
                await whole.http.post("/v1/chat/completions", json=CHAT)

        main()
        tracer.close()
    ((path, body),) = got
    assert path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    names = {span.name for scope in resource.scope_spans for span in scope.spans}
    assert names == {"chat echo", "queue", "prefill", "decode"}


def _sinks(url: str) -> Any:
    from octavo.server.sinks import make_sinks

    return make_sinks(ObservabilityConfig(otlp_endpoint=url))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://a:4318", "http://a:4318/v1/traces"),
        ("http://a:4318/", "http://a:4318/v1/traces"),
        ("http://a/otlp", "http://a/otlp/v1/traces"),
        ("http://a/v1/traces", "http://a/v1/traces"),
    ],
)
def test_where_traces_go(given: str, expected: str) -> None:
    assert traces_url(given) == expected


@pytest.mark.parametrize("url", ["a:4318", "grpc://a:4317", "http://", "http://a b", ""])
def test_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint is"):
        ObservabilityConfig(otlp_endpoint=url)


def test_without_the_library_the_setting_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[otel\]'"):
        Tracer("http://a:4318")


def test_the_library_is_not_imported_when_off() -> None:
    code = (
        "import sys, octavo.server.app, octavo.cli.serve, octavo.server.sinks as s;"
        "from octavo.core.observe_config import ObservabilityConfig;"
        "s.make_sinks(ObservabilityConfig());"
        "assert not [m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
