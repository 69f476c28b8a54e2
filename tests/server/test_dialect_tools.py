"""Tool calls and thinking in the words of `/v1/messages` and `/v1/responses`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_engine import MODEL, Script, Served, listening
from support.http_client import connected
from support.tool_tokens import HERMES, THINKING, marked_tokenizer

MARKED = marked_tokenizer()
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
NOW_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WRITTEN = ('weather {"city": "Oslo"}</tool_call>', "now {}</tool_call>")
"""As the template shows earlier calls."""
BOTH = f"I look.\n{CALL}\n{NOW_CALL}"
THOUGHT = "<think>\nhm 😀\n</think>\n\nyes"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
A_TOOLS: Any = [{"name": "weather", "input_schema": SCHEMA}, {"name": "now", "input_schema": {}}]
R_TOOLS: Any = [
    {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": None},
    {"type": "function", "name": "now", "parameters": None, "strict": None},
]
HI: Any = [{"role": "user", "content": "hi"}]
TALK = {"model": MODEL, "messages": HI, "max_tokens": 900}
ASK = {"model": MODEL, "input": "hi", "max_output_tokens": 900}


@contextmanager
def serving(answer: str, template: str = HERMES) -> Iterator[tuple[str, Served]]:
    script = Script(answer=answer)
    options = {"template": template, "max_model_len": 4000}
    with listening(script, MARKED, **options) as found:
        yield found


@contextmanager
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@contextmanager
def openai_at(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def prompt_of(parts: Served) -> str:
    ids = parts.script.submits[-1].prompt_token_ids
    return MARKED.decode(ids, skip_special_tokens=False)


def ask(
    path: str, answer: str | None, body: dict[str, Any], *, template: str = HERMES
) -> tuple[Any, Script]:
    """What a client gets, a stream as the list of its events; and the engine's script."""
    script = Script(answer=answer)

    async def main() -> Any:
        async with connected(MARKED, script, template=template, max_model_len=4000) as client:
            response = await client.http.post(path, json=body)
            if not body.get("stream"):
                return response.json()
            frames = response.text.split("\n\n")[:-1]
            return [json.loads(frame.split("\n")[1].removeprefix("data: ")) for frame in frames]

    return asyncio.run(main()), script


def test_a_tool_is_used_and_answered() -> None:
    with serving(BOTH) as (url, parts), claude(url) as client:
        first = client.messages.create(**TALK, tools=A_TOOLS)
        assert first.stop_reason == "tool_use"
        text, weather, now = first.content
        assert text.type == "text" and text.text.strip() == "I look."
        assert weather.type == "tool_use" and now.type == "tool_use"
        assert (weather.name, weather.input) == ("weather", {"city": "Oslo"})
        assert (now.name, now.input) == ("now", {})
        results: Any = [
            {"type": "tool_result", "tool_use_id": weather.id, "content": "rain"},
            {
                "type": "tool_result",
                "tool_use_id": now.id,
                "content": [{"type": "text", "text": "broken"}],
                "is_error": True,
            },
            {"type": "text", "text": "so?"},
        ]
        history: Any = [*HI, first.to_param(), {"role": "user", "content": results}]
        client.messages.create(**TALK | {"messages": history}, tools=A_TOOLS)
        prompt = prompt_of(parts)
        told = ("I look.", *WRITTEN, "rain", "Error: broken", "so?")
        places = [prompt.index(words) for words in told]
        assert places == sorted(places)
        counted = client.messages.count_tokens(model=MODEL, messages=history, tools=A_TOOLS)
        assert counted.input_tokens == len(parts.script.submits[-1].prompt_token_ids)


def test_a_function_is_called_and_answered() -> None:
    with serving(BOTH) as (url, parts), openai_at(url) as client:
        first = client.responses.create(**ASK, tools=R_TOOLS)
        message, weather, now = first.output
        assert message.type == "message" and first.output_text.strip() == "I look."
        assert weather.type == "function_call" and now.type == "function_call"
        assert (weather.name, weather.arguments) == ("weather", '{"city": "Oslo"}')
        assert (now.name, now.arguments) == ("now", "{}")
        assert first.status == weather.status == "completed"
        assert [tool.to_dict()["name"] for tool in first.tools] == ["weather", "now"]
        outputs: Any = [
            {"type": "function_call_output", "call_id": weather.call_id, "output": "rain"},
            {
                "type": "function_call_output",
                "call_id": now.call_id,
                "output": [{"type": "input_text", "text": "noon"}],
            },
        ]
        history: Any = [*HI, *first.output, *outputs]
        client.responses.create(**ASK | {"input": history}, tools=R_TOOLS)
        prompt = prompt_of(parts)
        places = [prompt.index(words) for words in ("I look.", *WRITTEN, "rain", "noon")]
        assert places == sorted(places)
        assert prompt.count("<|im_start|>assistant") == 2  # one message said and called


def test_streams_of_the_clients() -> None:
    with serving(BOTH) as (url, _):
        with claude(url) as client, client.messages.stream(**TALK, tools=A_TOOLS) as stream:
            kinds = [event.type for event in stream]
            message = stream.get_final_message()
            assert "input_json" in kinds
            assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
            assert message.content[1].to_dict()["input"] == {"city": "Oslo"}
            assert message.stop_reason == "tool_use"
        with openai_at(url) as other, other.responses.stream(**ASK, tools=R_TOOLS) as events:
            names = [event.type for event in events]
            answer = events.get_final_response()
            assert "response.function_call_arguments.delta" in names
            call = answer.output[1]
            assert call.type == "function_call" and call.arguments == '{"city": "Oslo"}'


def test_the_order_of_events_with_calls() -> None:
    found, _ = ask(MESSAGES, BOTH, {**TALK, "tools": A_TOOLS, "stream": True})
    assert squeezed(event["type"] for event in found) == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]
    starts = [event for event in found if event["type"] == "content_block_start"]
    assert [event["index"] for event in starts] == [0, 1, 2]
    block = starts[1]["content_block"]
    assert block == {"type": "tool_use", "id": block["id"], "name": "weather", "input": {}}

    found, _ = ask(RESPONSES, BOTH, {**ASK, "tools": R_TOOLS, "stream": True})
    call = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert squeezed(event["type"] for event in found) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *call * 2,
        "response.completed",
    ]
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    added = [e["item"] for e in found if e["type"] == "response.output_item.added"]
    assert added[1]["arguments"] == "" and added[1]["status"] == "in_progress"
    done = [e for e in found if e["type"] == "response.function_call_arguments.done"]
    assert [e["arguments"] for e in done] == ['{"city": "Oslo"}', "{}"]
    assert [e["output_index"] for e in done] == [1, 2]


def squeezed(kinds: Iterator[str]) -> list[str]:
    """Without repetitions of deltas."""
    found: list[str] = []
    for kind in kinds:
        if not (found and found[-1] == kind and kind.endswith("delta")):
            found.append(kind)
    return found


def test_thinking() -> None:
    wants = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    found, _ = ask(MESSAGES, THOUGHT, TALK | wants, template=THINKING)
    thinking = {"type": "thinking", "thinking": "hm 😀", "signature": ""}
    text = {"type": "text", "text": "yes", "citations": None}
    assert found["content"] == [thinking, text]
    hidden, _ = ask(MESSAGES, THOUGHT, TALK, template=THINKING)
    assert hidden["content"] == [text]
    events, _ = ask(MESSAGES, THOUGHT, {**TALK, **wants, "stream": True}, template=THINKING)
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(d.get("thinking", "") for d in deltas) == "hm 😀"
    assert "".join(d.get("text", "") for d in deltas) == "yes"

    found, _ = ask(RESPONSES, THOUGHT, ASK, template=THINKING)
    reasoning, message = found["output"]
    assert reasoning["type"] == "reasoning" and reasoning["summary"] == []
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm 😀"}]
    assert message["content"][0]["text"] == "yes"
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    events, _ = ask(RESPONSES, THOUGHT, {**ASK, "stream": True}, template=THINKING)
    assert squeezed(event["type"] for event in events)[2:8] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]


def test_log_probabilities_are_those_of_the_text() -> None:
    wants = {"include": ["message.output_text.logprobs"], "tools": R_TOOLS}
    found, _ = ask(RESPONSES, THOUGHT + CALL, ASK | wants, template=THINKING)
    (text,) = [item for item in found["output"] if item["type"] == "message"]
    entries = text["content"][0]["logprobs"]
    assert "yes" in "".join(entry["token"] for entry in entries)
    assert len(entries) < found["usage"]["output_tokens"] // 2
    events, _ = ask(RESPONSES, THOUGHT + CALL, {**ASK, **wants, "stream": True}, template=THINKING)
    (done,) = [e for e in events if e["type"] == "response.output_text.done"]
    assert done["logprobs"] == entries


def test_thoughts_are_sent_back() -> None:
    with serving(THOUGHT + CALL, THINKING) as (url, _), openai_at(url) as client:
        first = client.responses.create(**ASK, tools=R_TOOLS)
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        (call,) = [item for item in first.output if item.type == "function_call"]
        output: Any = {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": "rain",
        }
        again: Any = [*HI, *first.output, output]
        client.responses.create(**ASK | {"input": again}, tools=R_TOOLS)
    with serving(THOUGHT + CALL, THINKING) as (url, _), claude(url) as other:
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        message = other.messages.create(**TALK, tools=A_TOOLS, thinking=thinking)
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
        use = message.content[-1].to_dict()["id"]
        result: Any = {"type": "tool_result", "tool_use_id": use, "content": "rain"}
        history: Any = [*HI, message.to_param(), {"role": "user", "content": [result]}]
        other.messages.create(**TALK | {"messages": history}, tools=A_TOOLS, thinking=thinking)


A_CHOICES = [
    ({"type": "any"}, True),
    ({"type": "tool", "name": "weather"}, True),
    ({"type": "auto"}, False),
    (None, False),
]
R_CHOICES: list[tuple[Any, bool]] = [
    ("required", True),
    ({"type": "function", "name": "weather"}, True),
    (
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "weather"}],
        },
        True,
    ),
    ("auto", False),
]


@pytest.mark.parametrize(
    ("path", "choice", "is_held"),
    [
        *[(MESSAGES, *row) for row in A_CHOICES],
        *[(RESPONSES, *row) for row in R_CHOICES],
    ],
    ids=str,
)
def test_choices(path: str, choice: Any, is_held: bool) -> None:
    body = TALK | {"tools": A_TOOLS} if path == MESSAGES else ASK | {"tools": R_TOOLS}
    found, script = ask(path, CALL, {**body, "tool_choice": choice})
    assert "error" not in found or found["error"] is None, found
    assert (script.submits[-1].params.structured is not None) == is_held
    if is_held and choice not in ({"type": "any"}, "required"):
        grammar = script.submits[-1].params.structured
        assert grammar is not None and '"now"' not in grammar.value


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (MESSAGES, TALK | {"tools": A_TOOLS, "tool_choice": {"type": "none"}}),
        (RESPONSES, ASK | {"tools": R_TOOLS, "tool_choice": "none"}),
    ],
)
def test_tools_that_may_not_be_called(path: str, body: dict[str, Any]) -> None:
    found, script = ask(path, CALL, body)
    text = found["content"][0] if path == MESSAGES else found["output"][0]["content"][0]
    assert text["type"].endswith("text") and '{"city": "Oslo"}' in text["text"]
    prompt = MARKED.decode(script.submits[-1].prompt_token_ids, skip_special_tokens=False)
    assert "weather" not in prompt


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            MESSAGES,
            TALK
            | {
                "tools": A_TOOLS,
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            },
        ),
        (RESPONSES, ASK | {"tools": R_TOOLS, "parallel_tool_calls": False}),
    ],
)
def test_one_call_at_a_time(path: str, body: dict[str, Any]) -> None:
    found, _ = ask(path, f"{CALL}\n{NOW_CALL}", body)
    items = found["content" if path == MESSAGES else "output"]
    assert [item["name"] for item in items] == ["weather"]


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_a_call_that_was_cut(path: str) -> None:
    cut = CALL[: CALL.index("slo")]
    if path == MESSAGES:
        found, _ = ask(path, cut, TALK | {"tools": A_TOOLS, "max_tokens": 12})
        assert found["stop_reason"] == "max_tokens"
    else:
        found, _ = ask(path, cut, ASK | {"tools": R_TOOLS, "max_output_tokens": 12})
        assert found["status"] == "incomplete"


REFUSED = [
    (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
    (MESSAGES, {"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name is 'a b'"),
    (MESSAGES, {"tools": [{"name": "a"}]}, "tools[0].input_schema is missing"),
    (MESSAGES, {"tools": [A_TOOLS[0], A_TOOLS[0]]}, "tools has 'weather' twice"),
    (MESSAGES, {"tools": A_TOOLS, "tool_choice": {"type": "tool"}}, "has no name"),
    (MESSAGES, {"tools": A_TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "names 'x'"),
    (MESSAGES, {"tool_choice": {"type": "any"}}, "there are no tools"),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools[0].type is 'web_search'"),
    (RESPONSES, {"tools": [R_TOOLS[0], R_TOOLS[0]]}, "tools has 'weather' twice"),
    (RESPONSES, {"tool_choice": "required"}, "there are no tools"),
    (RESPONSES, {"tool_choice": {"type": "file_search"}}, "use 'function'"),
    (RESPONSES, {"tools": R_TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "names 'x'"),
]


@pytest.mark.parametrize(("path", "fields", "words"), REFUSED, ids=lambda value: str(value)[:50])
def test_tools_that_cannot_be_served(path: str, fields: Any, words: str) -> None:
    found, _ = ask(path, CALL, {**(TALK if path == MESSAGES else ASK), **fields})
    assert words in found["error"]["message"]


PIECES = st.sampled_from([BOTH, THOUGHT, CALL, NOW_CALL, "text 😀", "<tool_call>", "<", "\n", "{"])


@settings(max_examples=60, deadline=None)
@given(answer=st.lists(PIECES, min_size=1, max_size=4).map("".join), limit=st.integers(1, 200))
@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_a_stream_joined_is_the_whole(path: str, answer: str, limit: int) -> None:
    body: dict[str, Any]
    if path == MESSAGES:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        body = {**TALK, "tools": A_TOOLS, "thinking": thinking, "max_tokens": limit}
    else:
        body = {**ASK, "tools": R_TOOLS, "max_output_tokens": limit}
    whole, _ = ask(path, answer, body, template=THINKING)
    events, _ = ask(path, answer, body | {"stream": True}, template=THINKING)
    check: Callable[[Any, Any], None] = joined_message if path == MESSAGES else joined_response
    check(whole, events)


def joined_message(whole: Any, events: list[Any]) -> None:
    """Compares what the events tell with the whole message."""
    blocks: list[dict[str, Any]] = []
    arguments: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            assert event["index"] == len(blocks) - 1
            if delta["type"] == "input_json_delta":
                index = event["index"]
                arguments[index] = arguments.get(index, "") + delta["partial_json"]
            else:
                name = delta["type"].removesuffix("_delta")
                block[name] += delta[name]
    assert len(blocks) == len(whole["content"])
    for index, (block, wanted) in enumerate(zip(blocks, whole["content"], strict=True)):
        if block["type"] == "tool_use":
            assert block["name"] == wanted["name"] and block["id"] != wanted["id"]
            if wanted["input"] and whole["stop_reason"] == "tool_use":
                assert json.loads(arguments[index]) == wanted["input"]
        else:
            assert block == wanted
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert events[-2]["usage"] == whole["usage"]


def joined_response(whole: Any, events: list[Any]) -> None:
    """Compares what the events tell with the whole response."""
    texts: dict[int, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            index = event["output_index"]
            texts[index] = texts.get(index, "") + event["delta"]
    last = events[-1]["response"]
    assert events[-1]["type"] == f"response.{whole['status']}"
    assert last["usage"] == whole["usage"] and len(last["output"]) == len(whole["output"])
    for index, (item, wanted) in enumerate(zip(last["output"], whole["output"], strict=True)):
        assert {**item, "id": "", "call_id": ""} == {**wanted, "id": "", "call_id": ""}
        said = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert texts.get(index, "") == said
