"""HTTPS, and Unix sockets."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.aio import aio
from support.certificates import self_signed
from support.fake_engine import MODEL
from support.raw_http import listening_here

from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig
from octavo.core.errors import ConfigError
from octavo.server import run
from octavo.server.tls import load_certificate, tls_context
from octavo.tokenizer.tokenizer import Tokenizer

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made by the openssl command"
)


def secured(**options: Any) -> ServerConfig:
    return ServerConfig(security=SecurityConfig(**options))


def trusting(certificate: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate)


@needs_openssl
@aio
async def test_https_with_the_openai_api(tokenizer: Tokenizer, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "server", "secret")
    config = secured(ssl_certfile=certificate, ssl_keyfile=key, ssl_keyfile_password="secret")
    context = tls_context(config.security)
    async with listening_here(config, context, tokenizer=tokenizer) as server:
        url = f"https://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(base_url=url, verify=trusting(certificate)) as http:
            body = {"model": MODEL, "prompt": "ab", "max_tokens": 3, "stream": True}
            answer = await http.post("/v1/completions", json=body)
            assert answer.text.endswith("data: [DONE]\n\n")
        async with httpx.AsyncClient(base_url=url) as http:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await http.get("/health")
        async with httpx.AsyncClient(base_url=url.replace("https", "http")) as http:
            with pytest.raises(httpx.TransportError):
                await http.get("/health")


@needs_openssl
@pytest.mark.parametrize("requirement", ["required", "optional"])
@aio
async def test_certificates_of_clients(
    tokenizer: Tokenizer, tmp_path: Path, requirement: Any
) -> None:
    certificate, key = self_signed(tmp_path, "server")
    known, stranger = self_signed(tmp_path, "known"), self_signed(tmp_path, "stranger")
    config = secured(
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ssl_ca_certs=known[0],
        ssl_cert_reqs=requirement,
    )
    context = tls_context(config.security)
    async with listening_here(config, context, tokenizer=tokenizer) as server:
        for pair, is_welcome in ((known, True), (stranger, False), (None, None)):
            mine = trusting(certificate)
            if pair is not None:
                mine.load_cert_chain(*pair)
            url = f"https://127.0.0.1:{server.port}"
            async with httpx.AsyncClient(base_url=url, verify=mine) as http:
                if is_welcome or (is_welcome is None and requirement == "optional"):
                    assert (await http.get("/health")).status_code == 200
                else:
                    with pytest.raises(httpx.TransportError):
                        await http.get("/health")


@needs_openssl
def test_certificates_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path, "server", "secret")
    other = self_signed(tmp_path, "other")
    junk = tmp_path / "junk"
    junk.write_text("junk")
    for options, message in [
        ({"ssl_certfile": "/nowhere"}, "ssl_certfile /nowhere: No such file"),
        ({"ssl_certfile": str(junk)}, "OpenSSL says"),
        ({"ssl_certfile": certificate}, "OpenSSL says"),
        ({"ssl_certfile": certificate, "ssl_keyfile": other[1]}, "KEY_VALUES_MISMATCH"),
        ({"ssl_certfile": certificate, "ssl_keyfile": "/nowhere"}, "No such file"),
        ({"ssl_certfile": certificate, "ssl_keyfile": key}, "set ssl_keyfile_password"),
        (
            {"ssl_certfile": certificate, "ssl_keyfile": key, "ssl_keyfile_password": "wrong"},
            "ssl_keyfile .*: OpenSSL says",
        ),
        (
            {
                "ssl_certfile": other[0],
                "ssl_keyfile": other[1],
                "ssl_ca_certs": str(junk),
                "ssl_cert_reqs": "required",
            },
            "ssl_ca_certs .*junk: OpenSSL says",
        ),
    ]:
        with pytest.raises(ConfigError, match=message) as caught:
            tls_context(SecurityConfig(**options))
        assert "wrong" not in str(caught.value)
    monkeypatch.setenv("OCTAVO_SSL_KEYFILE_PASSWORD", "secret")
    assert tls_context(SecurityConfig(ssl_certfile=certificate, ssl_keyfile=key)) is not None
    assert tls_context(SecurityConfig()) is None


@needs_openssl
@aio
async def test_a_new_certificate(tokenizer: Tokenizer, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "server")
    config = secured(ssl_certfile=certificate, ssl_keyfile=key)
    context = tls_context(config.security)
    assert context is not None
    async with listening_here(config, context, tokenizer=tokenizer) as server:

        async def works() -> None:
            url = f"https://127.0.0.1:{server.port}/health"
            async with httpx.AsyncClient(verify=trusting(certificate)) as http:
                assert (await http.get(url)).status_code == 200

        await works()
        self_signed(tmp_path, "server")
        load_certificate(context, config.security)
        await works()
        trusted = trusting(certificate)
        Path(key).write_text("junk")
        with pytest.raises(ConfigError):
            load_certificate(context, config.security)
        async with httpx.AsyncClient(verify=trusted) as http:
            assert (await http.get(f"https://127.0.0.1:{server.port}/health")).status_code == 200


@aio
async def test_a_unix_socket(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = str(tmp_path / "octavo.sock")
    config = ServerConfig(uds=path)
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)
    async with listening_here(config, tokenizer=tokenizer):
        transport = httpx.AsyncHTTPTransport(uds=path)
        async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as http:
            body = {"model": MODEL, "prompt": "ab", "max_tokens": 3}
            assert (await http.post("/v1/completions", json=body)).status_code == 200
        with pytest.raises(ConfigError, match=f"Unix socket '{path}': Address already in use"):
            run.bind(config)
    assert not os.path.exists(path)


def test_paths_that_are_no_place_for_a_socket(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="in use"):
        run.bind(ServerConfig(uds=str(file)))
    assert file.read_text() == "mine"
    for path in (str(tmp_path / "no" / "where"), "x" * 200):
        with pytest.raises(ConfigError, match="--uds"):
            run.bind(ServerConfig(uds=path))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (ServerConfig(port=0), "http://127.0.0.1:PORT/v1"),
        (ServerConfig(port=0, root_path="/llm"), "http://127.0.0.1:PORT/llm/v1"),
        (
            ServerConfig(port=0, security=SecurityConfig(ssl_certfile="x")),
            "https://127.0.0.1:PORT/v1",
        ),
    ],
)
def test_where_clients_find_it(config: ServerConfig, text: str) -> None:
    with run.bind(config) as sock:
        assert run.address(sock, config) == text.replace("PORT", str(sock.getsockname()[1]))


def test_where_clients_find_a_unix_socket(tmp_path: Path) -> None:
    config = ServerConfig(uds=str(tmp_path / "s"))
    with run.bind(config) as sock:
        assert run.address(sock, config) == f"unix socket {tmp_path}/s, /v1"
