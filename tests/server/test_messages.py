"""``/v1/messages``, through the real `anthropic` client and without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from support.fake_engine import MODEL, Script, Served, listening
from support.http_client import Client

from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.config import ServerConfig
from octavo.server.anthropic.schemas import CountTokensRequest, MessagesRequest
from octavo.tokenizer.tokenizer import Tokenizer

Within = Callable[..., Any]
PATH = "/v1/messages"
MAX_MODEL_LEN = 300
HI: Any = [{"role": "user", "content": "hi 😀"}]


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[tuple[str, Served]]:
    with listening(Script(num_cached_tokens=2), tokenizer, max_model_len=MAX_MODEL_LEN) as found:
        yield found


@pytest.fixture
def client(server: tuple[str, Served]) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server[0], api_key="none", max_retries=0) as client:
        yield client


def prompt_of(server: tuple[str, Served]) -> str:
    """What the model read last."""
    ids = server[1].script.submits[-1].prompt_token_ids
    return server[1].tokenizer.decode(ids, skip_special_tokens=False)


def body(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "max_tokens": 30, "messages": messages, **fields}


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """The events of a stream, checked for their framing."""
    frames = raw.decode().split("\n\n")
    assert frames.pop() == ""
    found = []
    for frame in frames:
        name, data = frame.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    answer = response.json()
    assert set(answer) == {"type", "error"} and answer["type"] == "error"
    error: dict[str, Any] = answer["error"]
    assert set(error) == {"type", "message"} and error["message"]
    return error


def test_an_answer(client: anthropic.Anthropic, server: tuple[str, Served]) -> None:
    answer = client.messages.create(model=MODEL, max_tokens=50, messages=HI, system="be brief")
    assert answer.id.startswith("msg_") and answer.role == "assistant" and answer.type == "message"
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].to_dict()["text"] == "system\nbe brief"
    assert answer.stop_reason == "end_turn" and answer.stop_sequence is None
    usage = answer.usage
    assert usage.cache_read_input_tokens == 2 and usage.cache_creation_input_tokens == 0
    submit = server[1].script.submits[-1]
    assert usage.input_tokens + 2 == len(submit.prompt_token_ids)
    assert usage.output_tokens > 2


def test_an_answer_can_be_sent_back(
    client: anthropic.Anthropic, server: tuple[str, Served]
) -> None:
    answer = client.messages.create(model=MODEL, max_tokens=5, messages=HI)
    text = answer.content[0].to_dict()["text"]
    assert text
    history = [*HI, answer.to_param(), {"role": "user", "content": "more"}]
    client.messages.create(model=MODEL, max_tokens=5, messages=history)
    assert prompt_of(server) == (
        f"<|im_start|>user\nhi 😀<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>\n"
        "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )


def test_blocks_become_the_prompt(client: anthropic.Anthropic, server: tuple[str, Served]) -> None:
    mark: Any = {"type": "ephemeral"}
    client.messages.create(
        model=MODEL,
        max_tokens=5,
        system=[
            {"type": "text", "text": "a", "cache_control": mark},
            {"type": "text", "text": "b"},
        ],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "c", "cache_control": mark}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "d"},
                ],
            },
            {"role": "user", "content": "e"},
        ],
        metadata={"user_id": "7"},
    )
    assert prompt_of(server) == (
        "<|im_start|>system\nab<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
        "<|im_start|>assistant\nd<|im_end|>\n<|im_start|>user\ne<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_an_answer_that_has_been_begun(
    client: anthropic.Anthropic, server: tuple[str, Served]
) -> None:
    begun: Any = [*HI, {"role": "assistant", "content": "The answer is ("}]
    client.messages.create(model=MODEL, max_tokens=5, messages=begun)
    assert prompt_of(server).endswith("<|im_start|>assistant\nThe answer is (")


def test_a_stream(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model=MODEL, max_tokens=50, messages=HI) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == "user\nhi 😀"
    assert message.content[0].to_dict()["text"] == text
    assert message.stop_reason == "end_turn"
    assert message.usage.cache_read_input_tokens == 2


def test_the_order_of_events(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.http.post(PATH, json=body(stream=True, max_tokens=4))
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events_of(answer.content)
        kinds = [event["type"] for event in found]
        assert 1 <= kinds.count("content_block_delta") <= 4
        assert kinds == [
            "message_start",
            "content_block_start",
            "ping",
            *["content_block_delta"] * kinds.count("content_block_delta"),
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        start = found[0]["message"]
        assert start["content"] == [] and start["stop_reason"] is None
        assert start["usage"]["cache_read_input_tokens"] == 3
        block = {"type": "text", "text": "", "citations": None}
        assert found[1] == {"type": "content_block_start", "index": 0, "content_block": block}
        assert found[2] == {"type": "ping"}
        assert found[-3] == {"type": "content_block_stop", "index": 0}
        assert found[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
        assert found[-2]["usage"]["output_tokens"] == 4

    within(scenario, Script(num_cached_tokens=3))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "end_turn"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"max_tokens": 10_000, "ignore_eos": True}, "model_context_window_exceeded"),
        ({"stop_sequences": ["r\n", "x"]}, "stop_sequence"),
        ({"top_k": 5, "temperature": 0.5, "top_p": 0.9, "seed": 3}, "end_turn"),
        ({"system": "s"}, "end_turn"),
    ],
    ids=str,
)
@pytest.mark.parametrize("content", ["hi", "😀 世"])
def test_a_stream_joined_is_the_whole(
    within: Within, content: str, options: Any, reason: str
) -> None:
    async def scenario(client: Client) -> None:
        sent = body(content, **options)
        whole = (await client.http.post(PATH, json=sent)).json()
        assert whole["stop_reason"] == reason
        assert whole["stop_sequence"] == ("r\n" if reason == "stop_sequence" else None)
        found = events_of((await client.http.post(PATH, json=sent | {"stream": True})).content)
        deltas = [e["delta"]["text"] for e in found if e["type"] == "content_block_delta"]
        assert [{"type": "text", "text": "".join(deltas), "citations": None}] == whole["content"]
        last = found[-2]
        assert last["delta"] == {key: whole[key] for key in ("stop_reason", "stop_sequence")}
        assert last["usage"] == whole["usage"]

    within(scenario)


def test_fields_reach_the_engine(client: anthropic.Anthropic, server: tuple[str, Served]) -> None:
    client.messages.create(
        model=MODEL,
        max_tokens=7,
        messages=HI,
        stop_sequences=["x"],
        extra_body={"top_k": 4, "temperature": 0.3, "top_p": 0.8, "cache_salt": "s"},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    )
    submit = server[1].script.submits[-1]
    params = submit.params
    assert (params.max_tokens, params.stop, params.top_k) == (7, ("x",), 4)
    assert (params.temperature, params.top_p, submit.cache_salt) == (0.3, 0.8, "s")
    assert params.structured is not None and "object" in params.structured.value


def test_thinking_is_told_to_templates_that_ask(within: Within) -> None:
    template = "{{ 'T' if enable_thinking else 'F' }}{{ messages[0].content }}"

    async def scenario(client: Client) -> None:
        for thinking, prompt in (("enabled", "Thi"), ("disabled", "Fhi"), ("adaptive", "Fhi")):
            sent = body(thinking={"type": thinking}, max_tokens=3)
            answer = (await client.http.post(PATH, json=sent)).json()
            assert answer["content"][0]["text"] == prompt

    within(scenario, template=template)


def test_effort_is_told_to_templates_that_ask(within: Within) -> None:
    async def scenario(client: Client) -> None:
        sent = body(output_config={"effort": "high"}, max_tokens=9)
        answer = (await client.http.post(PATH, json=sent)).json()
        assert answer["content"][0]["text"].startswith("high!")

    within(scenario, template="{{ reasoning_effort }}!")


def test_count_tokens(client: anthropic.Anthropic, server: tuple[str, Served]) -> None:
    client.messages.create(model=MODEL, max_tokens=3, messages=HI, system="s")
    counted = client.messages.count_tokens(model=MODEL, messages=HI, system="s")
    assert counted.input_tokens == len(server[1].script.submits[-1].prompt_token_ids)
    long: Any = [{"role": "user", "content": "z" * 2 * MAX_MODEL_LEN}]
    assert client.messages.count_tokens(model=MODEL, messages=long).input_tokens > MAX_MODEL_LEN
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="other", messages=HI)


def test_every_parameter_of_the_client_is_known() -> None:
    for schema, params in (
        (MessagesRequest, message_create_params.MessageCreateParamsBase),
        (CountTokensRequest, message_count_tokens_params.MessageCountTokensParams),
    ):
        known = {*schema.model_fields, *schema.unsupported}
        assert set(params.__annotations__) <= known


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": None}, "max_tokens is null"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role is 'tool'"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "content[0].type is 'image'"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "content[0].type is missing"),
        ({"messages": [{"role": "user", "content": 5}]}, "use a string or a list of blocks"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
            "thinking and tool_use are the assistant's",
        ),
        ({"messages": [*HI, {"role": "assistant", "content": ""}]}, "last message is empty"),
        ({"system": [IMAGE]}, "system[0].type is 'image'"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences has 17 strings"),
        ({"stop_sequences": [""]}, "stop_sequences has an empty string"),
        ({"temperature": -1}, "temperature is -1"),
        ({"output_config": {"effort": "high"}}, "output_config.effort is 'high'"),
        ({"container": "c"}, "container is not supported"),
        ({"n": 2}, "n is no parameter of this API"),
        ({"nonsense": 1}, "nonsense is no parameter"),
        ({"messages": [{"role": "user", "content": "z" * 100}]}, "messages has"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_served(within: Within, fields: Any, words: str) -> None:
    async def scenario(client: Client) -> None:
        for stream in (False, True):
            sent = {**body(), **fields, "stream": stream}
            error = error_of(await client.http.post(PATH, json=sent), 400)
            assert error["type"] == "invalid_request_error" and words in error["message"]

    within(scenario)


def test_errors_have_their_class(client: anthropic.Anthropic) -> None:
    ask = client.messages.create
    with pytest.raises(anthropic.NotFoundError) as unknown:
        ask(model="other", max_tokens=5, messages=HI)
    assert unknown.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as wrong:
        ask(model=MODEL, max_tokens=0, messages=HI)
    assert wrong.value.type == "invalid_request_error"
    answer = client._client.get(PATH)
    assert error_of(answer, 405)["type"] == "invalid_request_error"
    assert error_of(client._client.get(f"{PATH}/nothing"), 404)["type"] == "not_found_error"


def test_keys_and_limits(tokenizer: Tokenizer) -> None:
    config = ServerConfig(
        security=SecurityConfig(api_key=("sk-1",)),
        limits=LimitsConfig(requests_per_minute_per_key=2),
    )
    options: dict[str, Any] = {"max_tokens": 3, "model": MODEL, "messages": HI}
    with (
        listening(Script(), tokenizer, config=config) as (url, _),
        anthropic.Anthropic(base_url=url, api_key="sk-1", max_retries=0) as client,
    ):
        client.messages.create(**options)
        wrong = client.with_options(api_key="sk-2")
        with pytest.raises(anthropic.AuthenticationError) as refused:
            wrong.messages.create(**options)
        assert refused.value.type == "authentication_error"
        bearer = anthropic.Anthropic(base_url=url, auth_token="sk-1", max_retries=0)
        bearer.messages.create(**options)
        with pytest.raises(anthropic.RateLimitError) as limited:
            client.messages.create(**options)
        assert limited.value.type == "rate_limit_error"
        assert int(limited.value.response.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("script", "status", "kind"),
    [
        (Script(fail_after_tokens=3), 500, "api_error"),
        (Script(die_after_steps=3), 503, "overloaded_error"),
    ],
    ids=["failed", "died"],
)
def test_an_engine_that_fails(within: Within, script: Script, status: int, kind: str) -> None:
    async def scenario(client: Client) -> None:
        streamed = await client.http.post(PATH, json=body(stream=True))
        assert streamed.status_code == 200
        found = events_of(streamed.content)
        assert found[-1]["type"] == "error" and found[-1]["error"]["type"] == kind
        assert "message_stop" not in [event["type"] for event in found]
        assert error_of(await client.http.post(PATH, json=body()), status)["type"] == kind

    within(scenario, script)


def test_a_failing_stream_raises_in_the_client(tokenizer: Tokenizer) -> None:
    with (
        listening(Script(fail_after_tokens=3), tokenizer) as (url, _),
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(model=MODEL, max_tokens=9, messages=HI) as stream,
        pytest.raises(anthropic.APIStatusError, match="on purpose"),
    ):
        stream.until_done()
