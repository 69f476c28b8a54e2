from __future__ import annotations

from typing import Any

import pytest

from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.config import ServerConfig
from octavo.core.errors import ConfigError


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        (SecurityConfig, {"allowed_origins": ('["*"]',)}, "allowed_origins has.*https://example"),
        (SecurityConfig, {"allowed_origins": ("https://a/b",)}, "without a path"),
        (
            SecurityConfig,
            {"allowed_origins": ("*",), "allow_credentials": True},
            "name the origins",
        ),
        (SecurityConfig, {"allowed_methods": ("GET, POST",)}, "allowed_methods has 'GET, POST'"),
        (SecurityConfig, {"allowed_headers": ("a:b",)}, "allowed_headers"),
        (SecurityConfig, {"ssl_keyfile": "k"}, "ssl_keyfile is set, but ssl_certfile is not"),
        (SecurityConfig, {"ssl_ca_certs": "k"}, "ssl_ca_certs is set, but ssl_certfile"),
        (SecurityConfig, {"ssl_cert_reqs": "required"}, "ssl_cert_reqs is required.*None"),
        (
            SecurityConfig,
            {"ssl_certfile": "c", "ssl_ca_certs": "a"},
            "ssl_cert_reqs is none and ssl_ca_certs is a",
        ),
        (LimitsConfig, {"max_request_bytes": 0}, "max_request_bytes is 0"),
        (LimitsConfig, {"max_header_bytes": 1023}, "max_header_bytes is 1023: use 1024"),
        (LimitsConfig, {"header_timeout_s": 0}, "header_timeout_s is 0"),
        (LimitsConfig, {"body_timeout_s": float("nan")}, "body_timeout_s is nan"),
        (LimitsConfig, {"keep_alive_timeout_s": -1}, "keep_alive_timeout_s is -1"),
        (LimitsConfig, {"max_connections": 0}, "max_connections is 0"),
        (LimitsConfig, {"tokens_per_minute_per_key": 0}, "tokens_per_minute_per_key is 0"),
        (LimitsConfig, {"max_concurrency_per_key": 0}, "max_concurrency_per_key is 0"),
        (LimitsConfig, {"requests_per_minute_per_key": -3}, "requests_per_minute_per_key is -3"),
        (ServerConfig, {"uds": ""}, "uds is ''"),
        (ServerConfig, {"uds": "a\0b"}, "uds is 'a.x00b'"),
        (ServerConfig, {"root_path": "llm"}, "root_path is 'llm'"),
        (ServerConfig, {"root_path": "/llm/"}, "root_path"),
    ],
)
def test_what_cannot_be(part: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        part(**options)


def test_secrets_are_not_shown() -> None:
    security = SecurityConfig(
        api_key=("sk-1",), metrics_key="sk-2", ssl_certfile="c", ssl_keyfile_password="sk-3"
    )
    assert "sk-" not in repr(ServerConfig(security=security))
