"""Whoever keeps records of requests, by the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.observe_config import ObservabilityConfig

if TYPE_CHECKING:
    from octavo.server.record import Sink


def make_sinks(config: ObservabilityConfig) -> tuple[Sink, ...]:
    """Nothing is imported for what is not wanted.

    Raises:
        ConfigError: the log cannot be opened, or a library is missing.
    """
    sinks: list[Sink] = []
    if config.otlp_endpoint is not None:  # first: it knows the trace that the log names
        from octavo.server.tracing import Tracer

        sinks.append(Tracer(config.otlp_endpoint))
    if config.request_log is not None:
        from octavo.server.request_log import RequestLog

        sinks.append(RequestLog(config.request_log))
    return tuple(sinks)
