"""``/v1/responses``, through the real `openai` client and without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import response_create_params
from support.fake_engine import MODEL, Script, Served, listening
from support.http_client import Client, error_of

from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig
from octavo.server.openai_responses.schemas import ResponsesRequest
from octavo.tokenizer.tokenizer import Tokenizer

Within = Callable[..., Any]
PATH = "/v1/responses"
LOGPROBS = "message.output_text.logprobs"


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[tuple[str, Served]]:
    with listening(Script(num_cached_tokens=2), tokenizer, max_model_len=300) as found:
        yield found


@pytest.fixture
def client(server: tuple[str, Served]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0) as client:
        yield client


def prompt_of(server: tuple[str, Served]) -> str:
    """What the model read last."""
    ids = server[1].script.submits[-1].prompt_token_ids
    return server[1].tokenizer.decode(ids, skip_special_tokens=False)


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """The events of a stream, checked for their framing and numbers."""
    frames = raw.decode().split("\n\n")
    assert frames.pop() == ""
    found = []
    for number, frame in enumerate(frames):
        name, data = frame.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        assert value["sequence_number"] == number
        found.append(value)
    return found


def test_an_answer(client: openai.OpenAI, server: tuple[str, Served]) -> None:
    answer = client.responses.create(
        model=MODEL, input="hi 😀", instructions="be brief", metadata={"a": "b"}, store=True
    )
    assert answer.id.startswith("resp_") and answer.object == "response"
    assert answer.status == "completed" and answer.error is None
    assert answer.output_text == "system\nbe brief"
    assert [item.type for item in answer.output] == ["message"]
    assert answer.instructions == "be brief" and answer.metadata == {"a": "b"}
    assert answer.model_dump()["store"] is False
    usage = answer.usage
    assert usage is not None and usage.input_tokens_details.cached_tokens == 2
    assert usage.input_tokens == len(server[1].script.submits[-1].prompt_token_ids)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert answer.completed_at is not None and answer.completed_at >= answer.created_at


def test_an_answer_can_be_sent_back(client: openai.OpenAI, server: tuple[str, Served]) -> None:
    hi: Any = {"role": "user", "content": "hi"}
    answer = client.responses.create(model=MODEL, input=[hi], max_output_tokens=5)
    text = answer.output_text
    assert text
    for form in (answer.output, [item.model_dump() for item in answer.output]):
        client.responses.create(model=MODEL, input=[hi, *form, hi])
        assert prompt_of(server) == (
            f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>\n"
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        )


def test_items_become_the_prompt(within: Within) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}{% if m.reasoning_content %} ({{ "
        "m.reasoning_content }}){% endif %} {{ m.content }}]{% endfor %}"
    )

    async def scenario(client: Client) -> None:
        items = [
            {"type": "message", "role": "developer", "content": "a"},
            {"role": "user", "content": [{"type": "input_text", "text": t} for t in "bc"]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "d", "annotations": []}],
            },
            {"role": "user", "content": "e"},
        ]
        sent = {"input": items, "instructions": "s", "max_output_tokens": 60, "ignore_eos": True}
        answer = (await client.http.post(PATH, json=sent)).json()
        text = answer["output"][0]["content"][0]["text"]
        assert text.startswith("[system s][system a][user bc][assistant (hm) d][user e]")

    within(scenario, template=template, max_model_len=200)


def test_a_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="hi 😀") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        answer = stream.get_final_response()
    assert "".join(deltas) == answer.output_text == "user\nhi 😀"
    assert answer.status == "completed"


def test_the_order_of_events(within: Within) -> None:
    async def scenario(client: Client) -> None:
        sent = {"model": MODEL, "input": "hi", "stream": True, "max_output_tokens": 4}
        found = events_of((await client.http.post(PATH, json=sent)).content)
        kinds = [event["type"] for event in found]
        deltas = kinds.count("response.output_text.delta")
        assert 1 <= deltas <= 4
        assert kinds == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            *["response.output_text.delta"] * deltas,
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
        for event in found[:2]:
            assert event["response"]["status"] == "in_progress"
            assert event["response"]["output"] == [] and event["response"]["usage"] is None
        added, part = found[2], found[3]
        item = added["item"]["id"]
        assert added["item"] == {
            "type": "message",
            "id": item,
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        assert part["part"] == empty
        for event in found[3:-2]:
            place = (event["item_id"], event["output_index"], event["content_index"])
            assert place == (item, 0, 0)
        assert found[-4]["text"] == "user"[: len(found[-4]["text"])]
        assert found[-3]["part"] == {**empty, "text": found[-4]["text"]}
        last = found[-1]["response"]
        assert found[-2]["item"] == last["output"][0]
        assert last["incomplete_details"] == {"reason": "max_output_tokens"}
        assert last["usage"]["output_tokens"] == 4

    within(scenario)


VARYING = {"id", "created_at", "completed_at"}


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    output = [{**item, "id": ""} for item in response["output"]]
    return {k: v for k, v in response.items() if k not in VARYING} | {"output": output}


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, "completed"),
        ({"max_output_tokens": 3}, "incomplete"),
        ({"include": [LOGPROBS], "top_logprobs": 2}, "completed"),
        ({"stop": "r\nh", "include": [LOGPROBS]}, "completed"),
        ({"instructions": "s", "temperature": 0.5, "top_p": 0.5}, "completed"),
    ],
    ids=str,
)
@pytest.mark.parametrize("content", ["hi", "😀 世"])
def test_a_stream_joined_is_the_whole(
    within: Within, content: str, options: Any, status: str
) -> None:
    async def scenario(client: Client) -> None:
        sent = {"model": MODEL, "input": content, **options}
        whole = (await client.http.post(PATH, json=sent)).json()
        assert whole["status"] == status
        found = events_of((await client.http.post(PATH, json=sent | {"stream": True})).content)
        assert found[-1]["type"] == f"response.{status}"
        assert without_ids(found[-1]["response"]) == without_ids(whole)
        deltas = [event for event in found if event["type"] == "response.output_text.delta"]
        (part,) = whole["output"][0]["content"]
        assert "".join(event["delta"] for event in deltas) == part["text"]
        done = next(event for event in found if event["type"] == "response.output_text.done")
        assert done["logprobs"] == part["logprobs"]
        if "include" in options:
            assert len(part["logprobs"]) == whole["usage"]["output_tokens"]
            num_top = options.get("top_logprobs", 0)
            assert all(len(entry["top_logprobs"]) == num_top for entry in part["logprobs"])

    within(scenario)


def test_the_form_of_the_answer(client: openai.OpenAI, server: tuple[str, Served]) -> None:
    form: Any = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    answer = client.responses.create(model=MODEL, input="hi", text={"format": form})
    params = server[1].script.submits[-1].params
    assert params.structured is not None and "object" in params.structured.value
    assert answer.text is not None and answer.text.to_dict()["format"] == form
    client.responses.create(model=MODEL, input="hi", text={"format": {"type": "text"}})
    assert server[1].script.submits[-1].params.structured is None


@pytest.mark.parametrize(
    ("effort", "source", "prompt"),
    [
        ("none", "{{ 'T' if enable_thinking else 'F' }}x", "Fx"),
        ("low", "{{ 'T' if enable_thinking else 'F' }}x", "Tx"),
        ("low", "{{ reasoning_effort }}x", "lowx"),
        ("none", "plain", "plain"),
    ],
)
def test_effort_is_told_to_templates_that_ask(
    within: Within, effort: str, source: str, prompt: str
) -> None:
    async def scenario(client: Client) -> None:
        sent = {"input": "hi", "reasoning": {"effort": effort}, "max_output_tokens": 20}
        answer = (await client.http.post(PATH, json=sent)).json()
        assert answer["output"][0]["content"][0]["text"].startswith(prompt)
        assert answer["reasoning"]["effort"] == effort
        chat = await client.chat(reasoning_effort=effort, max_tokens=20)
        assert chat["choices"][0]["message"]["content"].startswith(prompt)

    within(scenario, template=source)


def test_effort_that_no_template_can_be_told(within: Within) -> None:
    async def scenario(client: Client) -> None:
        sent = {"messages": [USER], "reasoning_effort": "low"}
        error = await client.refused("/v1/chat/completions", sent)
        assert error["param"] == "reasoning_effort" and error["code"] == "unsupported_parameter"

    within(scenario)


def test_every_parameter_of_the_client_is_known() -> None:
    known = {*ResponsesRequest.model_fields, *ResponsesRequest.unsupported}
    assert set(response_create_params.ResponseCreateParamsBase.__annotations__) <= known


USER = {"role": "user", "content": "hi"}
REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": None}, "input", "use a string or a list of items"),
        ({"input": []}, "input", "input is empty"),
        ({"input": "z" * 100}, "input", "input has"),
        ({"input": ["x"]}, "input[0]", "use an object"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "item_reference"),
        ({"input": [{"content": "x"}]}, "input[0].role", "missing"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "'tool'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
            "input[0].content[0].type",
            "input_image",
        ),
        ({"input": [USER, REASONING]}, "input[1]", "no message or call of the model follows"),
        ({"input": [REASONING, USER]}, "input[0]", "no message or call of the model follows"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
        ({"max_output_tokens": 999}, "max_output_tokens", "max_output_tokens of"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored here"),
        ({"conversation": "conv_1"}, "conversation", "nothing is stored here"),
        ({"background": True}, "background", "not supported"),
        ({"truncation": "auto"}, "truncation", "not supported"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "knows nothing of thinking"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "use 'none', "),
        ({"include": ["file_search_call.results"]}, "include[0]", "use 'message.output_text"),
        ({"top_logprobs": 3}, "top_logprobs", "include has no"),
        ({"include": [LOGPROBS], "top_logprobs": 21}, "top_logprobs", "21"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name", "has no name"),
        (
            {"text": {"format": {"type": "text", "schema": {}}}},
            "text.format",
            "its type is 'text'",
        ),
        ({"stream_options": {}}, "stream_options", "stream is not true"),
        ({"nonsense": 1}, "nonsense", "is no parameter"),
        ({"model": "other"}, "model", "does not exist here"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_served(within: Within, fields: Any, param: str, words: str) -> None:
    async def scenario(client: Client) -> None:
        sent = {"model": MODEL, "input": "hi", **fields}
        error = error_of(await client.http.post(PATH, json=sent), 404 if param == "model" else 400)
        assert error["param"] == param
        assert words in error["message"]

    within(scenario)


def test_errors_have_their_class(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as stored:
        client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
    assert stored.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="hi")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_a_key_is_needed(tokenizer: Tokenizer) -> None:
    config = ServerConfig(security=SecurityConfig(api_key=("sk-1",)))
    with (
        listening(Script(), tokenizer, config=config) as (url, _),
        openai.OpenAI(base_url=f"{url}/v1", api_key="sk-1", max_retries=0) as client,
    ):
        client.responses.create(model=MODEL, input="hi")
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="sk-2").responses.create(model=MODEL, input="hi")


@pytest.mark.parametrize(
    ("script", "status"),
    [(Script(fail_after_tokens=3), 500), (Script(die_after_steps=3), 503)],
    ids=["failed", "died"],
)
def test_an_engine_that_fails(within: Within, script: Script, status: int) -> None:
    async def scenario(client: Client) -> None:
        sent = {"model": MODEL, "input": "hi"}
        streamed = await client.http.post(PATH, json=sent | {"stream": True})
        assert streamed.status_code == 200
        last = events_of(streamed.content)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        assert last["response"]["error"]["code"] == "server_error"
        assert last["response"]["error"]["message"]
        error_of(await client.http.post(PATH, json=sent), status)

    within(scenario, script)
