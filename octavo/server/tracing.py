"""OpenTelemetry: a trace of each request, in the names of the GenAI conventions.

Spans are made when a request is over, from the times in its record, so that a request costs nothing
while it runs. Under the request's own span (of kind server) there is one for each part of each
prompt's way: ``queue``, ``prefill`` and ``decode``. A W3C ``traceparent`` in the request's headers
makes them part of the caller's trace, and its sampling decision counts. What else there is to set
(sampler, resource, headers for the collector) is read from the environment by the library itself.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from octavo import __version__
from octavo.core.errors import ConfigError
from octavo.server.errors import kind_of
from octavo.server.record import Part, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""Names of operations by path; others are not among the conventions."""
_PROVIDER = "octavo"
_PARAMS = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "max_tokens")
_NS = 1_000_000_000


class Tracer:
    """Implements `octavo.server.record.Sink`.

    Args:
        endpoint: base URL of a collector.
        exporter: where spans go, instead of there.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
            from opentelemetry.trace.propagation.tracecontext import (
                TraceContextTextMapPropagator,
            )
        except ImportError as error:
            raise ConfigError(
                f"otlp_endpoint is {endpoint}, but OpenTelemetry is not installed ({error}): "
                "pip install 'octavo[otel]', or leave the setting out"
            ) from error
        attributes = {"service.version": __version__, "service.instance.id": _instance()}
        if not os.environ.get("OTEL_SERVICE_NAME"):
            attributes["service.name"] = "octavo"
        self._provider = TracerProvider(
            resource=Resource.create(attributes), shutdown_on_exit=False
        )
        exporter = exporter or OTLPSpanExporter(endpoint=traces_url(endpoint))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("octavo", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._server_kind, self._error = SpanKind.SERVER, StatusCode.ERROR
        self._within = set_span_in_context

    def record(self, record: RequestRecord) -> None:
        """See `Sink.record`."""
        span = self._tracer.start_span(
            _name(record),
            context=self._propagator.extract(_carrier(record)),
            kind=self._server_kind,
            start_time=_ns(record.arrival),
            attributes=_request_attributes(record),
        )
        record.trace_id = f"{span.get_span_context().trace_id:032x}"
        if span.is_recording():
            self._finish(span, record)
        span.end(_ns(record.arrival + record.total_s))

    def close(self) -> None:
        """See `Sink.close`."""
        self._provider.shutdown()

    def _finish(self, span: Span, record: RequestRecord) -> None:
        span.set_attributes(_response_attributes(record))
        for part in record.parts:
            if part.summary.first_token_s is not None:
                at = part.arrival + part.summary.first_token_s
                span.add_event("gen_ai.first_token", timestamp=_ns(at))
            self._trace(span, part)
        error = next((part.summary.error for part in record.parts if part.summary.error), None)
        if record.status >= 500 or error is not None:
            kind = str(record.status) if error is None else kind_of(error).code
            span.set_attribute("error.type", kind or type(error).__name__)
            span.set_status(self._error)

    def _trace(self, parent: Span, part: Part) -> None:
        """A span for each part of a prompt's way that it came to."""
        context, summary = self._within(parent), part.summary
        begun, first, last = summary.queue_s, summary.first_token_s, summary.last_token_s
        over = max(summary.total_s, last or 0.0)
        ways: list[tuple[str, float, float, dict[str, Any]]] = [
            ("queue", 0.0, over if begun is None else begun, {}),
        ]
        if begun is not None:
            sizes = {
                "gen_ai.usage.input_tokens": summary.num_prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": summary.num_cached_tokens,
            }
            ways.append(("prefill", begun, max(begun, over if first is None else first), sizes))
        if first is not None and last is not None:
            sizes = {"gen_ai.usage.output_tokens": summary.num_generated_tokens}
            ways.append(("decode", first, last, sizes))
        for name, start, end, attributes in ways:
            attributes["octavo.request.id"] = summary.request_id
            span = self._tracer.start_span(
                name, context, start_time=_ns(part.arrival + start), attributes=attributes
            )
            span.end(_ns(part.arrival + end))


def traces_url(endpoint: str) -> str:
    """Where a collector with this base URL takes traces; a URL that says so already is left."""
    endpoint = endpoint.rstrip("/")
    return endpoint if endpoint.endswith("/v1/traces") else f"{endpoint}/v1/traces"


def _name(record: RequestRecord) -> str:
    operation = _OPERATIONS.get(record.path)
    if operation is None:
        return f"{record.method} {record.path}"
    return f"{operation} {record.model}" if record.model else operation


def _carrier(record: RequestRecord) -> dict[str, str]:
    found = {name: record.header(name.encode()) for name in ("traceparent", "tracestate")}
    return {name: value for name, value in found.items() if value is not None}


def _request_attributes(record: RequestRecord) -> dict[str, Any]:
    """Those that samplers may look at."""
    found: dict[str, Any] = {
        "http.request.method": record.method,
        "http.route": record.path,
        "gen_ai.provider.name": _PROVIDER,
    }
    if record.path in _OPERATIONS:
        found["gen_ai.operation.name"] = _OPERATIONS[record.path]
    if record.model is not None:
        found["gen_ai.request.model"] = record.model
    return found


def _response_attributes(record: RequestRecord) -> dict[str, Any]:
    found: dict[str, Any] = {"http.response.status_code": record.status}
    if record.client is not None:
        found["octavo.client"] = record.client
    if not record.parts:
        return found
    params, summaries = record.parts[0].params, [part.summary for part in record.parts]
    for name in _PARAMS:
        value = getattr(params, name)
        if value is not None:
            found[f"gen_ai.request.{name}"] = value
    if params.n > 1:
        found["gen_ai.request.choice.count"] = params.n
    if params.seed is not None:
        found["gen_ai.request.seed"] = params.seed
    reasons = [reason for summary in summaries for reason in summary.finish_reasons]
    return {
        **found,
        "gen_ai.response.id": record.id or "",
        "gen_ai.response.model": record.model or "",
        "gen_ai.response.finish_reasons": reasons,
        "gen_ai.usage.input_tokens": sum(s.num_prompt_tokens for s in summaries),
        "gen_ai.usage.output_tokens": sum(s.num_generated_tokens for s in summaries),
        "gen_ai.usage.cache_read.input_tokens": sum(s.num_cached_tokens for s in summaries),
    }


def _instance() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _ns(seconds: float) -> int:
    return int(seconds * _NS)
