from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.fake_engine import MAX_MODEL_LEN
from support.http_client import Client, error_of

from octavo import __version__

Within = Callable[..., Any]


def test_models(within: Within) -> None:
    async def scenario(client: Client) -> None:
        listed = (await client.http.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [card["id"] for card in listed["data"]] == ["echo", "alias/of echo"]
        assert all(card["max_model_len"] == MAX_MODEL_LEN for card in listed["data"])
        one = (await client.http.get("/v1/models/alias/of%20echo")).json()
        assert one == listed["data"][1]
        error = error_of(await client.http.get("/v1/models/other"), 404)
        assert error["code"] == "model_not_found"

    within(scenario)


def test_health_and_version(within: Within) -> None:
    async def scenario(client: Client) -> None:
        for path in ("/health", "/ping"):
            answer = await client.http.get(path)
            assert (answer.status_code, answer.json()) == (
                200,
                {"status": "ok", "engine_restarts": 0},
            )
        assert (await client.http.get("/version")).json() == {"version": __version__}

    within(scenario)


def test_metrics_count_what_was_served(within: Within) -> None:
    async def scenario(client: Client) -> None:
        await client.complete(prompt="ab", n=2, max_tokens=3)
        answer = await client.http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = answer.text.splitlines()
        name = 'octavo:request_success_total{finished_reason="length",model_name="echo"} 2.0'
        assert name in lines

    within(scenario)


def test_tokenize_and_back(within: Within) -> None:
    async def scenario(client: Client) -> None:
        for text in ("", "hello world", "😀 世界 é", "<|im_start|>x"):
            body = {"prompt": text, "return_token_strs": True}
            answer = (await client.http.post("/tokenize", json=body)).json()
            assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
            assert answer["max_model_len"] == MAX_MODEL_LEN
            assert answer["tokens"] == client.parts.tokenizer.encode(text)
            back = await client.http.post("/detokenize", json={"tokens": answer["tokens"]})
            assert back.json() == {"prompt": text}

    within(scenario)


def test_tokenize_takes_texts_longer_than_the_context(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = (await client.http.post("/tokenize", json={"prompt": "ab " * 20_000})).json()
        assert answer["count"] > MAX_MODEL_LEN

    within(scenario)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [999999]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
    ],
    ids=str,
)
def test_what_cannot_be_tokenized(
    within: Within, path: str, body: dict[str, Any], param: str
) -> None:
    async def scenario(client: Client) -> None:
        assert (await client.refused(path, body))["param"] == param

    within(scenario)


def test_the_schema_shows_every_parameter(within: Within) -> None:
    async def scenario(client: Client) -> None:
        schema = (await client.http.get("/openapi.json")).json()
        bodies = schema["components"]["schemas"]
        assert "top_k" in bodies["CompletionRequest"]["properties"]
        assert "messages" in bodies["ChatCompletionRequest"]["properties"]
        assert "/v1/chat/completions" in schema["paths"]

    within(scenario)
