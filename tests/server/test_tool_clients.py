"""Tools through the libraries that people use: the `openai` client and LangChain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel
from support.fake_engine import MODEL, Script, Served, listening
from support.tool_tokens import THINKING, marked_tokenizer

USER: Any = {"role": "user", "content": "hi"}
CALLS = (
    '<think>Which city?</think>I look.\n<tool_call>\n{"name": "weather", "arguments": '
    '{"city": "Oslo \\"N\\"", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
ARGUMENTS = {"city": 'Oslo "N"', "days": 2}
TOKENIZER = marked_tokenizer()


class weather(BaseModel):
    """The weather of a city."""

    city: str
    days: int


class now(BaseModel):
    """The time of day."""


TOOLS: Any = [openai.pydantic_function_tool(weather), openai.pydantic_function_tool(now)]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Served]]:
    script = Script(answer=CALLS)
    with listening(script, TOKENIZER, template=THINKING, max_model_len=4000) as found:
        yield found


@pytest.fixture
def client(server: tuple[str, Served]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[USER], tools=TOOLS)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "I look."
    first, second = choice.message.tool_calls or ()
    assert first.type == second.type == "function"
    assert (first.function.name, json.loads(first.function.arguments)) == ("weather", ARGUMENTS)
    assert (second.function.name, second.function.arguments) == ("now", "{}")
    assert (choice.message.model_extra or {})["reasoning_content"] == "Which city?"
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens


def test_openai_parses_arguments(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=[USER], tools=TOOLS)
    first, second = answer.choices[0].message.tool_calls or ()
    assert first.function.parsed_arguments == weather(**ARGUMENTS)
    assert second.function.parsed_arguments == now()


def test_openai_joins_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=[USER], tools=TOOLS, stream_options={"include_usage": True}
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == "I look." and final.choices[0].finish_reason == "tool_calls"
    found = [call.function.parsed_arguments for call in message.tool_calls or ()]
    assert found == [weather(**ARGUMENTS), now()]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.name for event in done] == ["weather", "now"]
    assert final.usage is not None and final.usage.completion_tokens


def test_what_the_client_has_got_can_be_sent_back(
    client: openai.OpenAI, server: tuple[str, Served]
) -> None:
    with client.chat.completions.stream(model=MODEL, messages=[USER], tools=TOOLS) as stream:
        streamed = stream.get_final_completion().choices[0].message
    created = client.chat.completions.create(model=MODEL, messages=[USER], tools=TOOLS)
    for message in (streamed, created.choices[0].message):
        for form in (message.model_dump(), message.model_dump(exclude_none=True), message):
            history: Any = [USER, form]
            history += [
                {"role": "tool", "tool_call_id": call.id, "content": "ok"}
                for call in message.tool_calls or ()
            ]
            client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS)
            prompt = TOKENIZER.decode(server[1].script.submits[-1].prompt_token_ids)
            assert 'weather {"city": "Oslo \\"N\\"", "days": 2}' in prompt


@contextmanager
def langchain(server: tuple[str, Served]) -> Iterator[Any]:
    from langchain_openai import ChatOpenAI

    with httpx.Client() as http:
        yield ChatOpenAI(
            base_url=f"{server[0]}/v1",
            api_key="none",  # type: ignore[arg-type]
            model=MODEL,
            max_retries=0,
            http_client=http,
        )


@pytest.mark.parametrize("choice", [None, "any", "weather", "none"])
def test_langchain(server: tuple[str, Served], choice: str | None) -> None:
    with langchain(server) as model:
        bound = model.bind_tools(
            [weather, now], **({} if choice is None else {"tool_choice": choice})
        )
        answer = bound.invoke("hi")
        chunks = list(bound.stream("hi"))
        streamed = chunks[0]
        for chunk in chunks[1:]:
            streamed += chunk
        for found in (answer, streamed):
            calls = [(call["name"], call["args"]) for call in found.tool_calls]
            if choice == "none":
                assert calls == []
            elif choice == "weather":
                assert calls == [("weather", ARGUMENTS)]
            else:
                assert calls == [("weather", ARGUMENTS), ("now", {})]
        structured = server[1].script.submits[-1].params.structured
        assert (structured is not None) == (choice in ("any", "weather"))


def test_an_agents_turn_in_langchain(server: tuple[str, Served]) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    with langchain(server) as model:
        bound = model.bind_tools([weather, now])
        first = bound.invoke("hi")
        results = [ToolMessage("ok", tool_call_id=call["id"]) for call in first.tool_calls]
        bound.invoke([HumanMessage("hi"), first, *results])
        prompt = TOKENIZER.decode(server[1].script.submits[-1].prompt_token_ids)
        assert prompt.count("\nok\n") == 2 and "now {}" in prompt
