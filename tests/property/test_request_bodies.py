"""No body that a client can send makes the server fail: every answer is a 2xx or a 4xx."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from support.fake_engine import Script, make_tokenizer
from support.http_client import connected, error_of

from octavo.server.anthropic.schemas import CountTokensRequest, MessagesRequest
from octavo.server.openai import schemas
from octavo.server.openai_responses.schemas import ResponsesRequest

TOKENIZER = make_tokenizer()
SCHEMAS: dict[str, type[BaseModel]] = {
    "/v1/completions": schemas.CompletionRequest,
    "/v1/chat/completions": schemas.ChatCompletionRequest,
    "/tokenize": schemas.TokenizeRequest,
    "/detokenize": schemas.DetokenizeRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/v1/responses": ResponsesRequest,
}

TEXT = st.text(max_size=8) | st.sampled_from(["", "text", "user", "auto", "echo", "é\x00", "😀"])
NUMBERS = (
    st.integers(-2, 20)
    | st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400, 1e308, -0.0])
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "input_text", "output_text", "thinking", "image"]) | VALUES},
    optional={"text": TEXT | VALUES, "thinking": TEXT | VALUES, "cache_control": VALUES},
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "developer", "tool"]) | VALUES},
        optional={
            "content": TEXT | st.lists(PARTS, max_size=2) | VALUES,
            "name": TEXT | VALUES,
            "tool_calls": VALUES,
            "reasoning_content": VALUES,
        },
    ),
    max_size=3,
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "reasoning", "function_call"]) | VALUES,
        "role": st.sampled_from(["user", "assistant", "developer"]) | VALUES,
        "content": TEXT | st.lists(PARTS, max_size=2) | VALUES,
        "summary": st.lists(PARTS, max_size=1) | VALUES,
    },
)
SENSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "model": st.just("echo"),
    "messages": MESSAGES,
    "prompt": TEXT | st.lists(TEXT, max_size=3) | st.lists(st.integers(0, 300), max_size=70),
    "tokens": st.lists(st.integers(0, 300), max_size=9),
    "input": TEXT | st.lists(ITEMS, max_size=3),
    "system": TEXT | st.lists(PARTS, max_size=2),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries(
        {}, optional={"include_usage": st.booleans(), "continuous_usage_stats": st.booleans()}
    ),
    "logprobs": st.booleans() | st.integers(0, 3),
    "echo": st.booleans(),
    "n": st.integers(1, 3),
    "max_tokens": st.integers(1, 20),
    "stop": TEXT | st.lists(TEXT, max_size=3),
    "chat_template_kwargs": st.dictionaries(TEXT, VALUES, max_size=2),
    "logit_bias": st.dictionaries(st.integers(0, 20).map(str), st.floats(-100, 100), max_size=2),
}


def bodies(path: str) -> st.SearchStrategy[Any]:
    """Objects whose names mostly exist, and whose values are often of the right type."""
    names = {
        name: SENSIBLE.get(name, NUMBERS) | VALUES
        for name in (*SCHEMAS[path].model_fields, "tools", "response_format", "nonsense")
    }
    required = {
        name: SENSIBLE[name]
        for name in ("messages", "prompt", "tokens", "input", "max_tokens")
        if name in names and SCHEMAS[path].model_fields[name].is_required()
    }
    few = st.sets(st.sampled_from(sorted(names)), max_size=4)
    return few.flatmap(
        lambda chosen: st.fixed_dictionaries({**required, **{name: names[name] for name in chosen}})
    )


REQUESTS = st.lists(
    st.sampled_from(sorted(SCHEMAS)).flatmap(
        lambda path: st.tuples(st.just(path), st.one_of(*[bodies(path)] * 8, VALUES))
    ),
    min_size=10,
    max_size=10,
)


@settings(max_examples=60, deadline=None)
@given(requests=REQUESTS)
def test_no_json_makes_the_server_fail(requests: list[tuple[str, Any]]) -> None:
    async def main() -> None:
        async with connected(TOKENIZER, Script()) as client:
            for path, body in requests:
                response = await client.http.post(path, json=body)
                if response.status_code == 200:
                    assert b'"error":{' not in response.content
                else:
                    assert response.status_code in (400, 404)
                    if path.startswith("/v1/messages"):
                        assert response.json()["error"]["message"]
                    else:
                        error_of(response, response.status_code)
            assert (await client.http.get("/health")).status_code == 200
            assert client.parts.state.engine.num_open == 0
            assert client.parts.link.running == []

    asyncio.run(main())


@settings(max_examples=100, deadline=None)
@given(raw=st.binary(max_size=40), path=st.sampled_from(sorted(SCHEMAS)), cut=st.integers(0, 60))
def test_no_bytes_make_the_server_fail(raw: bytes, path: str, cut: int) -> None:
    valid = json.dumps({"model": "echo", "prompt": "a", "messages": [], "tokens": [1]}).encode()

    async def main() -> None:
        async with connected(TOKENIZER, Script()) as client:
            for content in (raw, valid[:cut] + raw + valid[cut:]):
                headers = {"content-type": "application/json"}
                response = await client.http.post(path, content=content, headers=headers)
                assert response.status_code in (200, 400, 404)

    asyncio.run(main())
