"""The embedded model behind `/v1/messages` and `/v1/responses`, through all processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field
from support.serving import Serving, served_model

pytestmark = pytest.mark.real_model

ASK = "Name the capital of France."
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with served_model() as serving:
        yield serving


@pytest.fixture
def claude(serving: Serving) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=serving.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def client(serving: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_all_apis_say_the_same(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    turn: Any = [{"role": "user", "content": ASK}]
    chat = client.chat.completions.create(
        model="smollm2", messages=turn, max_tokens=20, temperature=0
    )
    text = chat.choices[0].message.content
    message = claude.messages.create(
        model="smollm2", messages=turn, max_tokens=20, extra_body={"temperature": 0}
    )
    response = client.responses.create(
        model="smollm2", input=ASK, max_output_tokens=20, temperature=0
    )
    assert message.content[0].to_dict()["text"] == response.output_text == text
    assert text is not None and "Paris" in text
    usage = message.usage
    assert chat.usage is not None and response.usage is not None
    total = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert total == response.usage.input_tokens == chat.usage.prompt_tokens
    assert (usage.cache_read_input_tokens or 0) > 0
    counted = claude.messages.count_tokens(model="smollm2", messages=turn)
    assert counted.input_tokens == total


def test_streams(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    turn: Any = [{"role": "user", "content": ASK}]
    with claude.messages.stream(
        model="smollm2", messages=turn, max_tokens=20, extra_body={"temperature": 0}
    ) as stream:
        said = "".join(stream.text_stream)
    with client.responses.stream(
        model="smollm2", input=ASK, max_output_tokens=20, temperature=0
    ) as events:
        told = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(told) == said and "Paris" in said


def test_an_answer_that_has_been_begun(claude: anthropic.Anthropic) -> None:
    turns: Any = [
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    answer = claude.messages.create(
        model="smollm2", messages=turns, max_tokens=3, extra_body={"temperature": 0}
    )
    assert answer.content[0].to_dict()["text"].startswith(" Paris")


def test_tools(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    turn: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    message = claude.messages.create(
        model="smollm2",
        messages=turn,
        max_tokens=100,
        tools=[{"name": "weather", "description": "Tells the weather.", "input_schema": WEATHER}],
        tool_choice={"type": "any"},
        extra_body={"temperature": 0},
    )
    assert message.stop_reason == "tool_use"
    use = message.content[-1]
    assert use.type == "tool_use" and use.name == "weather" and set(use.input) == {"city"}
    with client.responses.stream(
        model="smollm2",
        input=turn,
        max_output_tokens=100,
        temperature=0,
        tools=[{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}],
        tool_choice="required",
    ) as stream:
        answer = stream.get_final_response()
    call = answer.output[-1]
    assert call.type == "function_call" and call.name == "weather"
    assert isinstance(call.parsed_arguments, dict) and set(call.parsed_arguments) == {"city"}


def test_forms(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    text = "Ann is 30 years old. As JSON:"
    parsed = client.responses.parse(
        model="smollm2", input=text, text_format=Person, max_output_tokens=60, temperature=0
    )
    assert parsed.output_parsed is not None and parsed.output_parsed.age == 30
    message = claude.messages.parse(
        model="smollm2",
        messages=[{"role": "user", "content": text}],
        output_format=Person,
        max_tokens=60,
        extra_body={"temperature": 0},
    )
    assert message.parsed_output is not None and message.parsed_output.age == 30


def test_a_form_that_is_none(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    wrong: Any = {"type": "json_schema", "name": "n", "schema": {"type": 5}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="smollm2", input=ASK, text={"format": wrong})
    assert refused.value.param == "text.format"
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(
            model="smollm2",
            max_tokens=5,
            messages=[{"role": "user", "content": ASK}],
            output_config={"format": {"type": "json_schema", "schema": {"type": 5}}},
        )
    tool: Any = {"name": "n", "input_schema": {"type": "object", "properties": {"a": {"type": 5}}}}
    with pytest.raises(anthropic.BadRequestError, match="tool"):
        claude.messages.create(
            model="smollm2",
            max_tokens=5,
            messages=[{"role": "user", "content": ASK}],
            tools=[tool],
            tool_choice={"type": "any"},
        )
