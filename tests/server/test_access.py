"""The door: what it lets through, and that nothing gets past it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given, settings
from hypothesis import strategies as st
from support.aio import aio
from support.fake_engine import MODEL, served
from support.http_client import Client, error_of
from support.raw_http import Listening, get, listening_here, post, status_of

from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig
from octavo.server.assets import assets
from octavo.tokenizer.tokenizer import Tokenizer

Within = Callable[..., Any]
KEY, OTHER = "sk-right", "sk-other:1"
BEARER = {"Authorization": f"Bearer {KEY}"}
COMPLETIONS = "/v1/completions"
BODY = {"model": MODEL, "prompt": "ab", "max_tokens": 3}
CONFIG = ServerConfig(security=SecurityConfig(api_key=(KEY, OTHER)))


@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"authorization": f"bearer {KEY}"},
        {"authorization": f"BEARER    {KEY}  "},
        {"x-api-key": KEY},
        {"X-API-Key": f" {KEY} "},
        {"x-api-key": OTHER},
        {"x-api-key": KEY, **BEARER},
    ],
    ids=str,
)
def test_keys_that_open(within: Within, headers: dict[str, str]) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.http.post(COMPLETIONS, json=BODY, headers=headers)
        assert answer.status_code == 200
        for path in ("/v1/models", "/version", "/docs", "/openapi.json"):
            assert (await client.http.get(path, headers=headers)).status_code == 200

    within(scenario, config=CONFIG)


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        ([], "there is no API key"),
        ([("authorization", "Bearer")], "there is no API key"),
        ([("authorization", "Bearer ")], "there is no API key"),
        ([("x-api-key", "")], "there is no API key"),
        ([("authorization", "Bearer sk-wrong")], "none of this server's"),
        ([("authorization", "Bearer sk-right2")], "none of this server's"),
        ([("authorization", "Bearer sk-righ")], "none of this server's"),
        ([("authorization", "Bearer SK-RIGHT")], "none of this server's"),
        ([("authorization", "Bearer sk-right sk-right")], "none of this server's"),
        ([("authorization", "Bearer Bearer sk-right")], "none of this server's"),
        ([("authorization", "Bearer, Bearer sk-right")], "another scheme"),
        ([("authorization", "sk-right")], "another scheme"),
        ([("authorization", "")], "another scheme"),
        ([("authorization", "Basic c2stcmlnaHQ=")], "another scheme"),
        ([("authorization", "Bearer\tsk-right")], "another scheme"),
        ([("authorization", "Bearer: sk-right")], "another scheme"),
        ([("x-api-key", "Bearer sk-right")], "none of this server's"),
        ([("x-api-key", "sk-right, sk-right")], "none of this server's"),
        ([("x-api-key", "sk-right")] * 2, "stands there twice"),
        ([("authorization", "Bearer sk-right")] * 2, "stands there twice"),
        ([("authorization", "Bearer x"), ("authorization", "Bearer sk-right")], "twice"),
        ([("authorization", "Bearer x"), ("x-api-key", "sk-right")], "different keys"),
        ([("authorization", "Bearer sk-right"), ("x-api-key", "")], "different keys"),
        ([("authorization", "Basic x"), ("x-api-key", "sk-right")], "another scheme"),
        ([("x_api_key", "sk-right"), ("api-key", "sk-right")], "there is no API key"),
        ([("x-forwarded-authorization", "Bearer sk-right")], "there is no API key"),
        ([("proxy-authorization", "Bearer sk-right")], "there is no API key"),
        ([("cookie", "authorization=Bearer sk-right")], "there is no API key"),
        ([("authorization", b"Bearer \xd1\x95k-right")], "none of this server's"),
        ([("authorization", b"Bearer \xff\xfe")], "none of this server's"),
    ],
    ids=str,
)
def test_what_does_not_open(within: Within, headers: Any, what: str) -> None:
    async def scenario(client: Client) -> None:
        for path in (COMPLETIONS, "/v1/embeddings", "/nowhere"):
            answer = await client.http.post(path, json=BODY, headers=headers)
            error = error_of(answer, 401)
            assert what in error["message"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
            assert "sk-" not in answer.text
            challenge = answer.headers["www-authenticate"]
            assert challenge.startswith('Bearer realm="octavo"')
            assert ("invalid_token" in challenge) == ("none of" in what)
        assert not client.parts.script.submits

    within(scenario, config=CONFIG)


def test_keys_in_other_places_are_none(within: Within) -> None:
    async def scenario(client: Client) -> None:
        for query in ("api_key", "key", "access_token"):
            url = f"{COMPLETIONS}?{query}={KEY}"
            assert (await client.http.post(url, json=BODY)).status_code == 401
        assert (await client.http.post(COMPLETIONS, json={**BODY, "api_key": KEY})).is_client_error

    within(scenario, config=CONFIG)


def test_health_needs_no_key_and_metrics_only_their_own(within: Within) -> None:
    async def scenario(client: Client) -> None:
        for path in ("/health", "/ping", "/metrics"):
            for headers in ({}, BEARER, {"x-api-key": "wrong"}):
                assert (await client.http.get(path, headers=headers)).status_code == 200

    async def with_metrics_key(client: Client) -> None:
        metrics = {"x-api-key": "m"}
        assert (await client.http.get("/metrics", headers=metrics)).status_code == 200
        for headers in ({}, BEARER, {"x-api-key": "mm"}):
            error_of(await client.http.get("/metrics", headers=headers), 401)
        assert (await client.http.get("/health")).status_code == 200
        status = 401 if client.parts.state.access.needs_key else 200
        answer = await client.http.get("/v1/models", headers=metrics)
        assert answer.status_code == status

    within(scenario, config=CONFIG)
    security = SecurityConfig(api_key=(KEY,), metrics_key="m")
    within(with_metrics_key, config=ServerConfig(security=security))
    within(with_metrics_key, config=ServerConfig(security=SecurityConfig(metrics_key="m")))


def test_endpoints_know_whom_they_serve(within: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: Client) -> None:
        @client.parts.app.get("/who")
        async def who(request: Request) -> str:
            return str(request.state.principal.name)

        for name in ("alice", "bob"):
            answer = await client.http.get("/who", headers={"x-api-key": f"sk-{name}"})
            assert answer.json() == name

    monkeypatch.setenv("OCTAVO_API_KEYS", "alice:sk-alice,bob:sk-bob")
    within(scenario)


def test_keys_are_not_logged(within: Within, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(client: Client) -> None:
        for headers in (BEARER, {"x-api-key": "sk-wrong"}):
            await client.http.post(COMPLETIONS, json=BODY, headers=headers)

    caplog.set_level(logging.DEBUG)
    within(scenario, config=CONFIG)
    assert "sk-" not in caplog.text


def test_pages_of_allowed_sites(within: Within) -> None:
    origin = {"Origin": "https://a.example"}
    ask = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, x-stainless-os",
    }

    async def scenario(client: Client) -> None:
        http = client.http
        answer = await http.options(COMPLETIONS, headers={**origin, **ask})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin["Origin"]
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"]
        stranger = {"Origin": "https://b.example", **ask}
        answer = await http.options(COMPLETIONS, headers=stranger)
        assert answer.status_code == 400
        assert "access-control-allow-origin" not in answer.headers

        answer = await http.post(COMPLETIONS, json=BODY, headers={**origin, **BEARER})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin["Origin"]
        assert "X-RateLimit-Remaining-Tokens" in answer.headers["access-control-expose-headers"]
        refused = await http.post(COMPLETIONS, json=BODY, headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == origin["Origin"]
        # No preflight, so no way around the key:
        assert (await http.options(COMPLETIONS, headers=origin)).status_code == 401
        assert (await http.options(COMPLETIONS, headers=ask)).status_code == 401
        answer = await http.post(COMPLETIONS, json=BODY, headers={**origin, **ask})
        assert answer.status_code == 401

    security = SecurityConfig(api_key=(KEY,), allowed_origins=("https://a.example",))
    within(scenario, config=ServerConfig(security=security))


def test_without_the_flag_pages_of_other_sites_are_told_nothing(within: Within) -> None:
    async def scenario(client: Client) -> None:
        headers = {"Origin": "https://a.example"}
        answer = await client.http.post(COMPLETIONS, json=BODY, headers=headers)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]

    within(scenario)


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_a_root_path_whether_the_proxy_takes_it_off_or_not(within: Within, prefix: str) -> None:
    async def scenario(client: Client) -> None:
        http = client.http
        assert (await http.get(f"{prefix}/health")).status_code == 200
        assert (await http.get(f"{prefix}/v1/models")).status_code == 401
        assert (await http.get(f"{prefix}/v1/models", headers=BEARER)).status_code == 200
        assert (await http.get(f"{prefix}/")).headers["content-type"].startswith("text/html")
        for path in ("/llm", "/llmhealth", "/llm//health", "/llm/llm/health"):
            assert (await http.get(path)).status_code == 401
        schema = (await http.get(f"{prefix}/openapi.json", headers=BEARER)).json()
        assert schema["servers"] == [{"url": "/llm"}]

    within(scenario, config=ServerConfig(root_path="/llm", security=CONFIG.security))


def test_the_page_of_endpoints_loads_nothing(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.http.get("/docs")
        assert answer.headers["content-type"].startswith("text/html")
        assert "POST /v1/chat/completions" in answer.text
        assert "GET /health" in answer.text
        assert "http:" not in answer.text and "https:" not in answer.text
        assert "<script" not in answer.text and " src=" not in answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")

    within(scenario)


async def call(app: Any, scope: dict[str, Any]) -> list[dict[str, Any]]:
    """What an application says to a client that has sent all it wants to."""
    said: list[dict[str, Any]] = []
    incoming = [{"type": "websocket.connect"} if scope["type"] == "websocket" else
                {"type": "http.request", "body": b"", "more_body": False}]  # fmt: skip

    async def receive() -> dict[str, Any]:
        return incoming.pop() if incoming else {"type": f"{scope['type']}.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)

    await app(scope, receive, send)
    return said


def http_scope(path: str, method: str = "GET", root_path: str = "") -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": root_path,
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }


@aio
async def test_nothing_but_http(tokenizer: Tokenizer) -> None:
    async with served(tokenizer=tokenizer, config=CONFIG) as parts:
        for path in ("/health", "/v1/models"):
            scope = {**http_scope(path), "type": "websocket", "subprotocols": []}
            said = await call(parts.app, scope)
            assert said == [{"type": "websocket.close", "code": 1008}]


NASTY = (
    *("/", "//", "health", "ping", "HEALTH", "v1", "models", "..", ".", ";", "?", "#", "%2f"),
    *("%2e%2e", "\\", "\0", " ", "metrics", "docs", "openapi.json", "version", "llm", "é"),
)
PIECES = st.lists(st.sampled_from(NASTY), max_size=8).map("".join)


def test_no_path_gets_around_the_door(tokenizer: Tokenizer) -> None:
    methods = st.sampled_from(["GET", "HEAD", "OPTIONS", "POST", "PUT", "health", ""])

    @settings(max_examples=400, deadline=None)
    @given(PIECES, methods, st.sampled_from(["", "/llm", "/health", "/v1"]))
    def check(path: str, method: str, root_path: str) -> None:
        async def main() -> None:
            config = ServerConfig(root_path=root_path, security=CONFIG.security)
            async with served(tokenizer=tokenizer, config=config) as parts:
                for shape in (path, "/" + path, f"{root_path}/{path}"):
                    said = await call(parts.app, http_scope(shape, method))
                    body = b"".join(message.get("body", b"") for message in said)
                    status = said[0]["status"]
                    is_open = shape in OPEN or shape in {root_path + name for name in OPEN}
                    assert status == 401 or is_open, (shape, status, body)
                    assert b'"data"' not in body and b"version" not in body

        asyncio.run(main())

    check()


OPEN = {"/health", "/ping", "/metrics", *assets()}


async def ask(server: Listening, target: str, *headers: str) -> bytes:
    return await server.raw(get(target, *headers))


@aio
async def test_raw_requests_get_no_further(tokenizer: Tokenizer) -> None:
    """What the parser makes of them; none of them is answered with what the key protects."""
    models = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    good = f"Authorization: Bearer {KEY}".encode()
    targets = [
        *("/v1/models", "//v1/models", "/v1//models", "/V1/models", "/v1/models/", "/v1/models?a"),
        *("/health/../v1/models", "/health/%2e%2e/v1/models", "/health%2f..%2fv1%2fmodels"),
        *("/v1%2fmodels", "/%76%31/models", "/health;/../v1/models", "/health?/v1/models#/health"),
        *("//health", "/health/", "/HEALTH", "/health%20", "/health%00", "/./health", "/health/."),
        *("http://x/v1/models", "http://health/v1/models", "http:///health", "health", "*", "x:1"),
    ]
    raws = [
        *(get(target) for target in targets),
        *(get(target, "Upgrade: websocket", "Sec-WebSocket-Version: 13") for target in targets),
        models + b"Authorization : Bearer " + KEY.encode() + b"\r\n\r\n",
        models + b" " + good + b"\r\n\r\n",
        models + b"X: y\r\n " + good + b"\r\n\r\n",
        models + b"X: y\n" + b"Y: z\r" + good + b"\r\n\r\n",
        models + b"X\0: y\r\n\r\n",
        models + b"Authorization: Bearer\r\n " + KEY.encode() + b"\r\n\r\n",
        models + b"Authorization: Bearer " + KEY.encode() + b"\0\r\n\r\n",
        models + b"Authorization: Bearer \r\n" + good + b"\r\n\r\n",
        models + b"Authorization:\xa0Bearer " + KEY.encode() + b"\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n"
        b"Connection: close\r\n\r\n0\r\n\r\n" + models + good + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"CONNECT /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v1/models\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ]
    async with listening_here(CONFIG, tokenizer=tokenizer) as server:
        for raw in raws:
            answer = await server.raw(raw)
            is_health = b'{"status":"ok"' in answer
            assert is_health or status_of(answer) in (0, 400, 401, 405), (raw, answer)
            assert b'"object"' not in answer and b"echo" not in answer
        answer = await server.raw(models + good + b"\r\n\r\n")
        assert status_of(answer) == 200 and b"echo" in answer
        assert status_of(await ask(server, "/health")) == 200


@aio
async def test_each_request_of_a_connection_needs_its_key(tokenizer: Tokenizer) -> None:
    async with listening_here(CONFIG, tokenizer=tokenizer) as server:
        first = get("/v1/models", f"x-api-key: {KEY}").replace(b"Connection: close\r\n", b"")
        answers = await server.raw(first + get("/v1/models"))
        assert answers.count(b"HTTP/1.1 ") == 2
        assert status_of(answers) == 200
        assert b"HTTP/1.1 401 " in answers
        smuggled = post("/health", b'{"a": 1}' + get("/v1/models", f"x-api-key: {KEY}"))
        assert (await server.raw(smuggled)).count(b"HTTP/1.1 ") == 1
