"""``/v1/embeddings`` and ``/v1/score``, over an engine whose embeddings count a text's tokens."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai.types import embedding_create_params
from support.fake_engine import EMBEDDING_SIZE, MAX_MODEL_LEN, MODEL, Script, Served, listening
from support.http_client import Client, error_of

from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig
from octavo.server.openai.schemas import EmbeddingRequest
from octavo.tokenizer.tokenizer import Tokenizer

Within = Callable[..., Any]
EMBEDDINGS, SCORE = "/v1/embeddings", "/v1/score"


def expected(token_ids: Sequence[int], kind: str = "mean") -> np.ndarray:
    used = token_ids if kind == "mean" else token_ids[-1:]
    counts = np.bincount(used, minlength=EMBEDDING_SIZE)
    return counts / np.linalg.norm(counts)


async def embedded(client: Client, **body: Any) -> dict[str, Any]:
    answer = await client.http.post(EMBEDDINGS, json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_inputs_in_every_form(within: Within) -> None:
    async def scenario(client: Client) -> None:
        encode = client.parts.tokenizer.encode
        ab, hello = encode("ab"), encode("hello")
        for given, texts in [
            ("ab", [ab]),
            (ab, [ab]),
            (["ab", "hello"], [ab, hello]),
            ([ab, hello], [ab, hello]),
            (["ab"], [ab]),
            ([5], [[5]]),
        ]:
            answer = await embedded(client, input=given)
            assert set(answer) == {"object", "data", "model", "usage"}
            assert (answer["object"], answer["model"]) == ("list", MODEL)
            total = sum(map(len, texts))
            assert answer["usage"] == {"prompt_tokens": total, "total_tokens": total}
            for number, (item, text) in enumerate(zip(answer["data"], texts, strict=True)):
                assert (item["object"], item["index"]) == ("embedding", number)
                np.testing.assert_allclose(item["embedding"], expected(text), atol=1e-7)

    within(scenario)


def test_base64_holds_the_same_bits(within: Within) -> None:
    async def scenario(client: Client) -> None:
        numbers = await embedded(client, input="hello", encoding_format="float")
        packed = await embedded(client, input="hello", encoding_format="base64")
        raw = base64.b64decode(packed["data"][0]["embedding"], validate=True)
        assert np.frombuffer(raw, "<f4").tolist() == numbers["data"][0]["embedding"]
        assert packed["usage"] == numbers["usage"]

    within(scenario)


@pytest.mark.parametrize("kind", ["mean", "last"])
def test_pooling_is_the_servers_unless_the_request_says_it(within: Within, kind: str) -> None:
    script = Script()

    async def scenario(client: Client) -> None:
        ids = client.parts.tokenizer.encode("hello")
        for body, wanted in (
            ({}, kind),
            ({"pooling": "mean"}, "mean"),
            ({"pooling": "last"}, "last"),
        ):
            answer = await embedded(client, input="hello", **body)
            np.testing.assert_allclose(
                answer["data"][0]["embedding"], expected(ids, wanted), atol=1e-7
            )
            params = script.submits[-1].params
            assert (params.pooling, params.max_tokens) == (wanted, 0)

    within(scenario, script, config=ServerConfig(pooling=kind))


def test_every_parameter_reaches_the_engine(within: Within) -> None:
    script = Script()

    async def scenario(client: Client) -> None:
        same = {"priority": -2, "cache_salt": "mine", "timeout": 5, "user": "somebody"}
        await embedded(client, input="hello", dimensions=EMBEDDING_SIZE, **same)
        answer = await client.http.post(SCORE, json={"text_1": "a", "text_2": "b", **same})
        assert answer.status_code == 200
        assert {(s.priority, s.cache_salt) for s in script.submits} == {(-2, "mine")}
        assert script.submits[0].request_id.startswith("embd-")

    within(scenario, script)


def test_a_text_may_fill_the_context(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await embedded(client, input=[5] * MAX_MODEL_LEN)
        assert answer["usage"]["prompt_tokens"] == MAX_MODEL_LEN
        error = await client.refused(EMBEDDINGS, {"input": [[5], [5] * (MAX_MODEL_LEN + 1)]})
        assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
        assert f"{MAX_MODEL_LEN} or less" in error["message"]

    within(scenario)


def test_as_many_texts_as_the_api_allows(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await embedded(client, input=["a", "ab"] * 1024, encoding_format="base64")
        assert [item["index"] for item in answer["data"]] == list(range(2048))
        assert answer["data"][0]["embedding"] == answer["data"][2046]["embedding"]
        error = await client.refused(EMBEDDINGS, {"input": ["a"] * 2049})
        assert (error["param"], "1 to 2048" in error["message"]) == ("input", True)

    within(scenario)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (EMBEDDINGS, {}, "input"),
    (EMBEDDINGS, {"input": None}, "input"),
    (EMBEDDINGS, {"input": ""}, "input"),
    (EMBEDDINGS, {"input": []}, "input"),
    (EMBEDDINGS, {"input": ["a", ""]}, "input[1]"),
    (EMBEDDINGS, {"input": [[]]}, "input"),
    (EMBEDDINGS, {"input": [5, "a"]}, "input[1]"),
    (EMBEDDINGS, {"input": [-1]}, "input"),
    (EMBEDDINGS, {"input": [10**6]}, "input"),
    (EMBEDDINGS, {"input": {"text": "a"}}, "input"),
    (EMBEDDINGS, {"input": "a", "encoding_format": "int8"}, "encoding_format"),
    (EMBEDDINGS, {"input": "a", "dimensions": EMBEDDING_SIZE - 1}, "dimensions"),
    (EMBEDDINGS, {"input": "a", "dimensions": 0}, "dimensions"),
    (EMBEDDINGS, {"input": "a", "dimensions": "8"}, "dimensions"),
    (EMBEDDINGS, {"input": "a", "pooling": "max"}, "pooling"),
    (EMBEDDINGS, {"input": "a", "timeout": 0}, "timeout"),
    (EMBEDDINGS, {"input": "a", "priority": 0.5}, "priority"),
    (EMBEDDINGS, {"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    (EMBEDDINGS, {"input": "a", "temperature": 1}, "temperature"),
    (SCORE, {"text_1": "a"}, "text_2"),
    (SCORE, {"text_1": "a", "text_2": []}, "text_2"),
    (SCORE, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
    (SCORE, {"text_1": ["a", "b"], "text_2": "a"}, "text_1"),
    (SCORE, {"text_1": "", "text_2": "a"}, "text_1"),
    (SCORE, {"text_1": "a", "text_2": ["a", ""]}, "text_2[1]"),
    (SCORE, {"text_1": [5], "text_2": "a"}, "text_1[0]"),
    (SCORE, {"text_1": "a", "text_2": "b", "pooling": "cls"}, "pooling"),
    (SCORE, {"text_1": "a", "text_2": "b", "top_n": 1}, "top_n"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG, ids=str)
def test_what_cannot_be_served(within: Within, path: str, body: Any, param: str) -> None:
    script = Script()

    async def scenario(client: Client) -> None:
        error = await client.refused(path, body)
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
        assert script.submits == []
        await embedded(client, input="a")

    within(scenario, script)


def test_an_unknown_model(within: Within) -> None:
    async def scenario(client: Client) -> None:
        for path, body in ((EMBEDDINGS, {"input": "a"}), (SCORE, {"text_1": "a", "text_2": "a"})):
            assert (await client.refused(path, {**body, "model": "x"}, 404))["param"] == "model"

    within(scenario)


@pytest.mark.parametrize("path", [SCORE, "/score"])
def test_scores_are_cosines(within: Within, path: str) -> None:
    script = Script()

    async def scenario(client: Client) -> None:
        encode = client.parts.tokenizer.encode
        a, b, c = (expected(encode(text)) for text in ("hello", "hold", "xyz"))
        for first, second, cosines in [
            ("hello", "hold", [a @ b]),
            ("hello", ["hello", "hold", "xyz"], [1.0, a @ b, a @ c]),
            (["hello"], ["hold", "xyz"], [a @ b, a @ c]),
            (["hello", "xyz"], ["hold", "xyz"], [a @ b, 1.0]),
        ]:
            script.submits.clear()
            body = {"model": MODEL, "text_1": first, "text_2": second}
            answer = (await client.http.post(path, json=body)).json()
            assert set(answer) == {"id", "object", "created", "model", "data", "usage"}
            assert [item["score"] for item in answer["data"]] == pytest.approx(cosines, abs=1e-6)
            assert [item["index"] for item in answer["data"]] == list(range(len(cosines)))
            used = sum(len(submit.prompt_token_ids) for submit in script.submits)
            assert answer["usage"] == {"prompt_tokens": used, "total_tokens": used}
        first_alone = {"text_1": "hello", "text_2": ["a"] * 5}
        script.submits.clear()
        await client.http.post(path, json=first_alone)
        assert len(script.submits) == 6, "a text that is compared with many is computed once"

    within(scenario, script)


def test_failures_of_the_engine(within: Within) -> None:
    async def failing(client: Client) -> None:
        answer = await client.http.post(EMBEDDINGS, json={"input": ["a", "b"]})
        assert "failed on purpose" in error_of(answer, 500)["message"]

    async def dying(client: Client) -> None:
        answer = await client.http.post(EMBEDDINGS, json={"input": "a"})
        assert error_of(answer, 503)["code"] == "engine_dead"

    within(failing, Script(fail_after_tokens=0))
    within(dying, Script(die_after_steps=0))


def test_keys_guard_and_salts_divide(within: Within, tmp_path: Path) -> None:
    script, file = Script(), tmp_path / "keys"
    file.write_text("alice:sk-a\n")
    security = SecurityConfig(api_key_file=str(file), cache_isolation="key")

    async def scenario(client: Client) -> None:
        error_of(await client.http.post(EMBEDDINGS, json={"input": "a"}), 401)
        headers = {"Authorization": "Bearer sk-a"}
        for path, body in ((EMBEDDINGS, {"input": "a"}), (SCORE, {"text_1": "a", "text_2": "b"})):
            answer = await client.http.post(path, json=body, headers=headers)
            assert answer.status_code == 200
        assert {submit.cache_salt for submit in script.submits} == {"alice\n"}

    within(scenario, script, config=ServerConfig(security=security))


# ------------------------------------------------------------------ real clients


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[tuple[str, Served]]:
    with listening(Script(), tokenizer) as found:
        yield found


def test_openai_client(server: tuple[str, Served]) -> None:
    ids = server[1].tokenizer.encode("hello")
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0) as client:
        for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            answer = client.embeddings.create(model=MODEL, input=["hello", "ab"], **options)
            vector = answer.data[0].embedding
            if options.get("encoding_format") == "base64":
                assert isinstance(vector, str)
                vector = np.frombuffer(base64.b64decode(vector), "<f4").tolist()
            np.testing.assert_allclose(vector, expected(ids), atol=1e-7)
            assert answer.usage.total_tokens == len(ids) + 2
        last = client.embeddings.create(model=MODEL, input="hello", extra_body={"pooling": "last"})
        np.testing.assert_allclose(last.data[0].embedding, expected(ids, "last"), atol=1e-7)
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model=MODEL, input="hello", dimensions=8)
        assert refused.value.param == "dimensions"


def test_every_parameter_of_the_client_is_known() -> None:
    params = embedding_create_params.EmbeddingCreateParams
    assert set(params.__annotations__) <= set(EmbeddingRequest.model_fields)


def test_langchain(server: tuple[str, Served]) -> None:
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    encode = server[1].tokenizer.encode
    with httpx.Client() as http:
        options: Any = {
            "base_url": f"{server[0]}/v1",
            "api_key": "none",
            "model": MODEL,
            "max_retries": 0,
            "http_client": http,
        }
        model = OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
        np.testing.assert_allclose(model.embed_query("hello"), expected(encode("hello")), atol=1e-7)
        texts = ["hello", "ab", "the fox"]
        for found, text in zip(model.embed_documents(texts), texts, strict=True):
            np.testing.assert_allclose(found, expected(encode(text)), atol=1e-7)
        chat = ChatOpenAI(**options, temperature=0)
        answer = chat.invoke("hi 😀")
        assert answer.content == "user\nhi 😀"
        assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] > 0
        assert "".join(str(chunk.content) for chunk in chat.stream("hi 😀")) == "user\nhi 😀"
