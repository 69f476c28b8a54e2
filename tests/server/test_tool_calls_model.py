"""Tool calls of the embedded model, through the real `openai` client and all processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.serving import Serving, served_model

pytestmark = pytest.mark.real_model

ASK: Any = [{"role": "user", "content": "What is the weather in Paris today, in celsius?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["city", "unit", "days"],
            "additionalProperties": False,
        },
    },
}
NOW: Any = {"type": "function", "function": {"name": "now", "description": "The time of day."}}


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with served_model() as serving:
        yield serving


@pytest.fixture
def client(serving: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def check(name: str, arguments: str) -> None:
    found = json.loads(arguments)
    if name == "now":
        assert found == {}
        return
    assert name == "get_weather" and set(found) == {"city", "unit", "days"}
    assert len(found["city"]) <= 20 and 1 <= found["days"] <= 7
    assert found["unit"] in ("celsius", "fahrenheit")


def test_a_call_that_must_be_made_has_valid_arguments(client: openai.OpenAI) -> None:
    for temperature in (0, 1.5):
        answer = client.chat.completions.create(
            model="smollm2",
            messages=ASK,
            tools=[WEATHER, NOW],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=temperature,
            seed=7,
            n=3,
            max_tokens=200,
        )
        for choice in answer.choices:
            assert choice.finish_reason == "tool_calls" and choice.message.content is None
            (call,) = choice.message.tool_calls or ()
            assert call.type == "function"
            check(call.function.name, call.function.arguments)


def test_the_named_function_is_called_in_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="smollm2",
        messages=ASK,
        tools=[{**WEATHER, "function": {**WEATHER["function"], "strict": True}}, NOW],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        temperature=0,
        max_tokens=200,
    ) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert kinds.count("tool_calls.function.arguments.delta") > 3
    assert kinds.count("tool_calls.function.arguments.done") == 1
    (call,) = message.tool_calls or ()
    check(call.function.name, call.function.arguments)
    assert call.function.name == "get_weather"
    assert call.function.parsed_arguments == json.loads(call.function.arguments)
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[
            *ASK,
            message.model_dump(),
            {"role": "tool", "tool_call_id": call.id, "content": "18 degrees and sunny"},
        ],
        tools=[WEATHER, NOW],
        tool_choice="none",
        temperature=0,
        max_tokens=40,
    )
    assert "18" in (answer.choices[0].message.content or "")


def test_arguments_of_strict_tools_are_valid_if_there_is_a_call(client: openai.OpenAI) -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    answer = client.chat.completions.create(
        model="smollm2", messages=ASK, tools=[strict], temperature=1.2, seed=3, n=8, max_tokens=120
    )
    for choice in answer.choices:
        for call in choice.message.tool_calls or ():
            assert call.type == "function"
            if choice.finish_reason == "tool_calls":
                check(call.function.name, call.function.arguments)


def test_a_schema_that_cannot_be_enforced(client: openai.OpenAI) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": {"not": {"type": "null"}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="smollm2", messages=ASK, tools=[bad], tool_choice="required", max_tokens=5
        )
    assert caught.value.param == "tools"
    assert "not" in caught.value.message and "parameters of a tool" in caught.value.message
    client.chat.completions.create(model="smollm2", messages=ASK, tools=[bad], max_tokens=2)
