"""Whatever is wrong with a request, the answer is a 4xx in OpenAI's shape that says what."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from support.fake_engine import Script
from support.http_client import Client, error_of

from octavo.core import errors as core_errors
from octavo.core.access_config import LimitsConfig
from octavo.core.config import ServerConfig
from octavo.core.errors import EngineError
from octavo.core.plan import RequestDelta
from octavo.server.errors import TABLE, error_body, kind_of

Within = Callable[..., Any]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"   ", "empty"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "a",}', "column 16"),
        (b"not json", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b'{"prompt": "\\udc00 x"}', "not valid JSON"),
        (b'{"\\ud800": 1}', "not valid JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "not valid JSON"),
        (b'{"prompt": "a", "temperature": Infinity}', "not valid JSON"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "recursion"),
        (b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", "recursion"),
        (b"null", "use an object"),
        (b"[]", "use an object"),
        (b'"text"', "use an object"),
        (b"3", "use an object"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else value,
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_bodies_that_are_no_request(within: Within, path: str, raw: bytes, words: str) -> None:
    async def scenario(client: Client) -> None:
        headers = {"content-type": "application/json"}
        response = await client.http.post(path, content=raw, headers=headers)
        assert words in error_of(response, 400)["message"]

    within(scenario)


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/xml",
        "application/json; charset=utf-16",
        "nonsense",
        "",
    ],
)
def test_bodies_that_do_not_say_that_they_are_json(within: Within, kind: str | None) -> None:
    async def scenario(client: Client) -> None:
        headers = {} if kind is None else {"content-type": kind}
        response = await client.http.post(COMPLETIONS, content=b'{"prompt": "a"}', headers=headers)
        assert "JSON" in error_of(response, 400)["message"]

    within(scenario)


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=UTF-8", "application/vnd.x+json"]
)
def test_bodies_that_say_that_they_are_json(within: Within, kind: str) -> None:
    async def scenario(client: Client) -> None:
        headers = {"content-type": kind}
        response = await client.http.post(COMPLETIONS, content=b'{"prompt": "a"}', headers=headers)
        assert response.status_code == 200

    within(scenario)


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large(within: Within, announced: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"prompt": "' + b"a" * 1500
        yield b'"}'

    async def scenario(client: Client) -> None:
        kind = {"content-type": "application/json"}
        raw = b"".join([piece async for piece in pieces()]) if announced else pieces()
        error = error_of(await client.http.post(COMPLETIONS, content=raw, headers=kind), 413)
        assert "1500 bytes" in error["message"]
        assert error["code"] == "request_too_large"
        await client.complete(prompt="a", max_tokens=1)

    config = ServerConfig(limits=LimitsConfig(max_request_bytes=1500))
    within(scenario, config=config)


def test_numbers_that_are_too_large_for_json(within: Within) -> None:
    async def scenario(client: Client) -> None:
        raw, headers = b'{"prompt": "a", "top_p": 1e999}', {"content-type": "application/json"}
        response = await client.http.post(COMPLETIONS, content=raw, headers=headers)
        assert error_of(response, 400)["message"] == "top_p is inf: use a finite number"

    within(scenario)


BIG = 10**400
WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": True}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [[5], []]}, "prompt[1]"),
    ({"prompt": [5, "a"]}, "prompt[1]"),
    ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": [[5], 5]}, "prompt[1]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [1_000_000]}, "prompt"),
    ({"prompt": [BIG]}, "prompt"),
    ({"prompt": ["a"] * 1025}, "prompt"),
    ({"prompt": ["a"] * 100, "n": 11}, "n"),
    ({"max_tokens": None, "prompt": [5] * 64}, "prompt"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": BIG}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 101}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": BIG}, "temperature"),
    ({"temperature": 1e300}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": False}, "n"),
    ({"best_of": 0}, "best_of"),
    ({"best_of": 129}, "best_of"),
    ({"best_of": 2, "n": 3}, "best_of"),
    ({"best_of": 2, "n": 0}, "n"),
    ({"best_of": "2"}, "best_of"),
    ({"prompt": ["a"] * 100, "best_of": 11}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop": 5}, "stop"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"²": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 50: 1}}, "logit_bias"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
    ({"logit_bias": []}, "logit_bias"),
    ({"seed": 2**63}, "seed"),
    ({"seed": BIG}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {}}, "stream_options"),
    ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
    ({"stream": True, "stream_options": 5}, "stream_options"),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [999999]}, "stop_token_ids"),
    ({"stop_token_ids": [BIG]}, "stop_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [999999]}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words"),
    ({"bad_words": "word"}, "bad_words"),
    ({"bad_words": ["a"] * 1025}, "bad_words"),
    ({"priority": BIG}, "priority"),
    ({"priority": 0.5}, "priority"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"echo": 1}, "echo"),
    ({"user": 5}, "user"),
    ({"metadata": {"a": 5}}, "metadata.a"),
    ({"model": 5}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG_VALUES, ids=lambda value: str(value)[:40])
def test_values_that_cannot_be_served(within: Within, fields: dict[str, Any], param: str) -> None:
    async def scenario(client: Client) -> None:
        for stream in (False, True):
            if "stream" in fields and not stream:
                continue
            body = {"prompt": "hello", **({"stream": True} if stream else {}), **fields}
            if fields == {"stream_options": {}}:
                body.pop("stream", None)
            error = await client.refused(COMPLETIONS, body)
            assert error["param"] == param
            assert error["type"] == "invalid_request_error"
            assert len(error["message"]) <= 2000

    within(scenario)


NOT_OFFERED: dict[str, Any] = {
    "audio": {"voice": "x"},
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "modalities": ["audio"],
    "moderation": {"model": "m"},
    "prediction": {"type": "content"},
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "service_tier": "flex",
    "store": True,
    "suffix": "x",
    "verbosity": "low",
    "web_search_options": {},
}


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_parameters_that_are_not_offered(within: Within, name: str) -> None:
    async def scenario(client: Client) -> None:
        error = await client.refused(CHAT, {"messages": USER, name: NOT_OFFERED[name]})
        assert error["param"] == name
        assert error["code"] == "unsupported_parameter"
        assert error["message"].startswith(f"{name} is not supported")
        await client.chat(**{name: None})

    within(scenario)


@pytest.mark.parametrize("name", ["tools", "tool_choice", "parallel_tool_calls"])
def test_tools_are_for_conversations(within: Within, name: str) -> None:
    values = {"tools": [{"type": "function"}], "tool_choice": "auto", "parallel_tool_calls": False}

    async def scenario(client: Client) -> None:
        error = await client.refused(COMPLETIONS, {"prompt": "a", name: values[name]})
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")

    within(scenario)


def test_values_that_ask_for_nothing_are_taken(within: Within) -> None:
    async def scenario(client: Client) -> None:
        await client.chat(
            tools=[],
            tool_choice="none",
            functions=[],
            response_format={"type": "text"},
            parallel_tool_calls=True,
            store=False,
            service_tier="auto",
            verbosity="medium",
            prompt_cache_options={"mode": "implicit"},
            modalities=["text"],
            user="somebody",
            safety_identifier="somebody",
            prompt_cache_key="some",
            metadata={"a": "b"},
            logit_bias={},
            n=1,
            max_tokens=None,
            stop=None,
            stream=None,
            logprobs=False,
            top_logprobs=0,
        )
        await client.stream_chat(stream_options={"include_usage": None})
        await client.complete(prompt="a", best_of=1, suffix="", echo=None, n=None)
        await client.complete(prompt="a", best_of=2, n=2)

    within(scenario)


def test_parameters_that_nobody_knows(within: Within) -> None:
    async def scenario(client: Client) -> None:
        error = await client.refused(COMPLETIONS, {"prompt": "a", "max_token": 5})
        assert error["param"] == "max_token"
        assert error["code"] == "unknown_parameter"
        assert "did you mean max_tokens" in error["message"]
        for name in ("zzz", "", "a.b", "{what}", "prompt ", "__class__", "x" * 5000, "é\x00"):
            error = await client.refused(COMPLETIONS, {"prompt": "a", name: 5})
            assert error["code"] == "unknown_parameter"
            assert "{what}" not in error["message"] or name == "{what}"

    within(scenario)


def test_models_that_are_not_served(within: Within) -> None:
    async def scenario(client: Client) -> None:
        for path, body in (
            (COMPLETIONS, {"prompt": "a"}),
            (CHAT, {"messages": USER}),
            ("/tokenize", {"prompt": "a"}),
            ("/detokenize", {"tokens": []}),
        ):
            for name in ("nobody", "", "x" * 10_000):
                error = await client.refused(path, {**body, "model": name}, 404)
                assert error["code"] == "model_not_found"
                assert error["param"] == "model"
        assert (await client.complete(prompt="a", model="alias/of echo"))[
            "model"
        ] == "alias/of echo"

    within(scenario)


def test_routes_that_do_not_exist(within: Within) -> None:
    async def scenario(client: Client) -> None:
        error = error_of(await client.http.get("/v1/nothing"), 404)
        assert "GET /v1/nothing" in error["message"]
        response = await client.http.get(COMPLETIONS)
        assert "use POST" in error_of(response, 405)["message"]
        assert response.headers["allow"] == "POST"
        error_of(await client.http.request("DELETE", "/health"), 405)

    within(scenario)


@pytest.mark.parametrize("value", ["x", "-1", "10001", ""])
def test_limits_of_the_query(within: Within, value: str) -> None:
    async def scenario(client: Client) -> None:
        error = error_of(await client.http.get("/stats", params={"limit": value}), 400)
        assert error["param"] == "limit" and "Input should" not in error["message"]

    within(scenario)


RANGES = [
    ("priority", 2**31, "priority is 2147483648: use 2147483647 or less"),
    ("priority", -(2**31) - 1, "use -2147483648 or more"),
    ("priority", BIG, "use 2147483647 or less"),
    ("timeout", 0, "timeout is 0: use more than 0"),
    ("timeout", 1e9, "use 86400 or less"),
    ("response_format", {"type": "xml"}, "use 'text', 'json_object' or 'json_schema'"),
]


@pytest.mark.parametrize(("name", "value", "words"), RANGES)
def test_limits_are_told_in_our_words(within: Within, name: str, value: Any, words: str) -> None:
    async def scenario(client: Client) -> None:
        error = await client.refused(COMPLETIONS, {"prompt": "a", name: value})
        assert words in error["message"] and "Input should" not in error["message"]
        assert error["param"].startswith(name)

    within(scenario)


def test_a_priority_that_would_not_count(within: Within) -> None:
    async def scenario(client: Client) -> None:
        engine = client.parts.state.engine
        await client.complete(prompt="a", priority=5)
        engine._info = dataclasses.replace(engine.info, policy="fcfs")
        error = await client.refused(COMPLETIONS, {"prompt": "a", "priority": 5})
        assert error["param"] == "priority"
        await client.complete(prompt="a", priority=0)
        engine._info = dataclasses.replace(engine.info, policy="priority")
        await client.complete(prompt="a", priority=5)

    within(scenario)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_what_the_engine_refuses_at_its_door(
    within: Within, path: str, stream: bool, several: bool
) -> None:
    async def scenario(client: Client) -> None:
        body: dict[str, Any] = {"messages": USER} if path == CHAT else {"prompt": "a"}
        if several:
            body |= {"n": 2} if path == CHAT else {"prompt": ["a", "b"], "n": 2}
        error = await client.refused(path, {**body, "stream": stream})
        assert error["message"] == "needs 9 blocks of 8"
        assert error["code"] == "context_length_exceeded"
        assert client.parts.state.engine.num_open == 0

    refusal = RequestDelta(request_id="", error="needs 9 blocks of 8", error_kind="ContextTooLong")
    within(scenario, Script(refuse=refusal))


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_an_engine_that_fails_one_request(within: Within, path: str) -> None:
    async def scenario(client: Client) -> None:
        body: dict[str, Any] = {"messages": USER} if path == CHAT else {"prompt": ["a", "b"]}
        error = await client.refused(path, body, 500)
        assert error == {
            "message": "the device failed on purpose",
            "type": "server_error",
            "param": None,
            "code": None,
        }
        response = await client.http.post(path, json={**body, "stream": True})
        assert response.status_code == 200
        *chunks, last, rest = response.text.split("\n\n")
        assert rest == ""
        assert chunks and all("choices" in chunk for chunk in chunks)
        assert json.loads(last.removeprefix("data: ")) == {"error": error}
        assert client.parts.state.engine.num_open == 0
        assert (await client.http.get("/health")).status_code == 200

    within(scenario, Script(fail_after_tokens=2, step_s=0.02))


def test_an_engine_that_dies(within: Within) -> None:
    async def scenario(client: Client) -> None:
        http = client.http
        assert (await http.get("/health")).status_code == 200
        response = await http.post(COMPLETIONS, json={"prompt": "a", "stream": True})
        last = response.text.split("\n\n")[-2]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["code"] == "engine_dead"
        assert "signal 9" in error["message"]
        for path in ("/health", "/ping"):
            health = await http.get(path)
            assert health.status_code == 503
            assert health.json()["status"] == "dead"
            assert "signal 9" in health.json()["error"]["message"]
        for stream in (False, True):
            body = {"prompt": ["a", "b"], "stream": stream}
            error = await client.refused(COMPLETIONS, body, 503)
            assert (error["type"], error["code"]) == ("server_error", "engine_dead")
        assert (await http.get("/v1/models")).status_code == 200
        assert (await http.get("/metrics")).status_code == 200

    within(scenario, Script(die_after_steps=3, step_s=0.01))


@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
def test_an_engine_that_dies_under_whole_answers(within: Within, prompt: Any) -> None:
    async def scenario(client: Client) -> None:
        error = await client.refused(COMPLETIONS, {"prompt": prompt}, 503)
        assert error["code"] == "engine_dead"

    within(scenario, Script(die_after_steps=3, step_s=0.01))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
def test_a_server_that_is_about_to_leave(within: Within, prompt: Any, stream: bool) -> None:
    async def scenario(client: Client) -> None:
        await client.parts.state.engine.drain(0)
        error = await client.refused(COMPLETIONS, {"prompt": prompt, "stream": stream}, 503)
        assert error["code"] == "shutting_down"
        assert (await client.http.get("/health")).json()["status"] == "draining"

    within(scenario)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
def test_what_nobody_foresaw_is_logged_and_not_shown(
    within: Within, prompt: Any, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(client: Client) -> None:
        async def send(_message: object) -> None:
            raise ZeroDivisionError("secret detail")

        client.parts.state.engine._link.send = send  # type: ignore[method-assign]
        error = await client.refused(COMPLETIONS, {"prompt": prompt, "stream": stream}, 500)
        assert error["type"] == "server_error"
        assert "secret" not in error["message"]
        del client.parts.state.engine._link.send  # type: ignore[attr-defined]

    within(scenario)
    assert "secret detail" in caplog.text


def test_what_fails_outside_of_any_endpoint(within: Within) -> None:
    async def scenario(client: Client) -> None:
        def fail() -> None:
            raise ZeroDivisionError("secret detail")

        app = client.parts.app
        app.add_api_route("/fails", fail)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            error = error_of(await http.get("/fails"), 500)
        assert "secret" not in error["message"]

    within(scenario)


def test_every_deliberate_error_has_a_row() -> None:
    kinds = [
        kind
        for kind in vars(core_errors).values()
        if isinstance(kind, type) and issubclass(kind, EngineError)
    ]
    assert len(kinds) > 10
    for kind in kinds:
        found = kind_of(kind("x"))
        assert found in TABLE.values()
        is_the_clients_fault = issubclass(kind, core_errors.RequestError | core_errors.Overloaded)
        assert (400 <= found.status < 500) == is_the_clients_fault
    assert kind_of(ValueError()).status == 500


def test_an_error_body_is_always_json() -> None:
    body = error_body("a\ud800b" * 5000, TABLE[EngineError], "\udfff")
    text = json.dumps(body, ensure_ascii=False).encode("utf-8")
    assert len(text) < 4000
