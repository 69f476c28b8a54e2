"""What a server tells of its work: the part of `octavo.core.config.ServerConfig` about that."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from octavo.core.options import require

_URL = re.compile(r"https?://[^/\s?#]+(/[^\s?#]*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """What the server tells of its work."""

    request_log: str | None = None
    """File for a line of JSON about each request, without any text of prompts or answers; - for
    standard output. A file that is moved away is made anew."""

    log_format: Literal["text", "json"] | None = None
    """Log lines for people, or one JSON object a line; that of OCTAVO_LOG_FORMAT by default, or
    text."""

    otlp_endpoint: str | None = None
    """URL of an OpenTelemetry collector (OTLP over HTTP, such as http://localhost:4318) that gets a
    trace of each request; needs the extra otel."""

    dashboard_show_text: bool = False
    """Show the beginnings of prompts and the ends of outputs to whoever may see the statistics;
    otherwise they hold no text at all."""

    def __post_init__(self) -> None:
        require(
            self.request_log != "", "request_log is empty: give a file, or - for standard output"
        )
        url = self.otlp_endpoint
        require(
            url is None or bool(_URL.fullmatch(url)),
            f"otlp_endpoint is {url!r}: give a URL such as http://localhost:4318",
        )
