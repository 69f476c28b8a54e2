"""Who may use a server, and how much: the parts of `octavo.core.config.ServerConfig` about that."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from octavo.core.options import require

_MAX_WAIT_S = 86_400
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]+", re.IGNORECASE)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Names of methods and headers, by RFC 9110."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Who may use the server."""

    api_key: tuple[str, ...] = field(default=(), repr=False)
    """A key that opens every endpoint but /health, /ping and /metrics; repeat it for several.
    Other users of the machine can read command lines: prefer api_key_file or the environment."""

    api_key_file: str | None = None
    """File of API keys, one `key` or `name:key` a line, perhaps with limits; SIGHUP reads it
    again."""

    metrics_key: str | None = field(default=None, repr=False)
    """The key that /metrics asks for, which is open to everybody otherwise; also from
    OCTAVO_METRICS_KEY."""

    cache_isolation: Literal["none", "key"] = "none"
    """key lets no API key profit from, or learn of, the prefixes that another one has sent; none
    keeps only different values of cache_salt apart."""

    allowed_origins: tuple[str, ...] = ()
    """Web sites whose pages may call the server from a browser (CORS), or * for all."""

    allowed_methods: tuple[str, ...] = ("*",)
    """HTTP methods that pages of these sites may use, or * for all."""

    allowed_headers: tuple[str, ...] = ("*",)
    """Headers that pages of these sites may send, or * for all."""

    allow_credentials: bool = False
    """Let pages of these sites send cookies and client certificates."""

    ssl_certfile: str | None = None
    """PEM file with the server's certificate chain, to serve HTTPS; SIGHUP reads it again."""

    ssl_keyfile: str | None = None
    """PEM file with the certificate's private key, if it is not in ssl_certfile."""

    ssl_keyfile_password: str | None = field(default=None, repr=False)
    """Password of the private key; prefer the environment: OCTAVO_SSL_KEYFILE_PASSWORD."""

    ssl_ca_certs: str | None = None
    """PEM file with the authorities whose client certificates are accepted."""

    ssl_cert_reqs: Literal["none", "optional", "required"] = "none"
    """Whether clients must prove themselves by a certificate of ssl_ca_certs."""

    def __post_init__(self) -> None:
        self._check_origins()
        for name in ("allowed_methods", "allowed_headers"):
            for value in getattr(self, name):
                require(bool(_TOKEN.fullmatch(value)), f"{name} has {value!r}: use names, or *")
        for name in ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"):
            require(
                getattr(self, name) is None or self.ssl_certfile is not None,
                f"{name} is set, but ssl_certfile is not: give the server's certificate too",
            )
        require(
            (self.ssl_cert_reqs == "none") == (self.ssl_ca_certs is None),
            f"ssl_cert_reqs is {self.ssl_cert_reqs} and ssl_ca_certs is {self.ssl_ca_certs}: give "
            "optional or required and a file of authorities, or neither",
        )

    def _check_origins(self) -> None:
        for origin in self.allowed_origins:
            require(
                origin in ("*", "null") or bool(_ORIGIN.fullmatch(origin)),
                f"allowed_origins has {origin!r}: write scheme and host, such as "
                "https://example.com, without a path, or * for all",
            )
        require(
            not (self.allow_credentials and "*" in self.allowed_origins),
            "allow_credentials is set and allowed_origins has *: any page could act for its "
            "reader; name the origins",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """How much of the server a client may use."""

    max_request_bytes: int = 64 << 20
    """Largest body of a request."""

    max_header_bytes: int = 64 << 10
    """Largest request line and headers together."""

    header_timeout_s: float = 10.0
    """Seconds from a connection's first sign of a request to the end of its headers."""

    body_timeout_s: float = 60.0
    """Seconds from the end of a request's headers to the end of its body."""

    keep_alive_timeout_s: int = 5
    """Seconds that a connection may be idle between two requests."""

    max_connections: int | None = None
    """Connections at once; further ones get status 503."""

    max_concurrency_per_key: int | None = None
    """Requests that an API key may have in flight at once; a line of api_key_file may say
    otherwise, as with the next two."""

    requests_per_minute_per_key: int | None = None
    """Requests that an API key may send in a minute."""

    tokens_per_minute_per_key: int | None = None
    """Prompt and generated tokens that an API key may use in a minute."""

    def __post_init__(self) -> None:
        for name in ("max_request_bytes", "max_connections", *PER_KEY):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} is {value}: use 1 or more")
        require(
            self.max_header_bytes >= 1024,
            f"max_header_bytes is {self.max_header_bytes}: use 1024 or more",
        )
        for name in ("header_timeout_s", "body_timeout_s", "keep_alive_timeout_s"):
            value = getattr(self, name)
            require(0 < value <= _MAX_WAIT_S, f"{name} is {value}: use up to {_MAX_WAIT_S}")


PER_KEY = ("max_concurrency_per_key", "requests_per_minute_per_key", "tokens_per_minute_per_key")
"""Fields of `LimitsConfig` that need API keys."""
