"""Tool calls and reasoning over HTTP: what the model is told, and what becomes of its answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.fake_engine import Script, make_tokenizer
from support.http_client import Client, connected
from support.tool_tokens import HERMES, LLAMA3, OPENED, QWEN3_CODER, THINKING, marked_tokenizer

from octavo.core.config import ServerConfig
from octavo.core.params import Structured
from octavo.tokenizer.tokenizer import Tokenizer

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now", "description": "The time."}}
TOOLS = [WEATHER, NOW]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
NOW_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
MARKED = marked_tokenizer()
Run = Callable[..., Any]


@pytest.fixture
def asked() -> Run:
    """``asked(answer, **body)``: what a client gets, and the engine's `Script`."""
    import asyncio

    def run(answer: str | None, *, is_stream: bool = False, **options: Any) -> Any:
        names = ("template", "tokenizer", "config")
        given = {name: options.pop(name) for name in names if name in options}
        tokenizer: Tokenizer = given.pop("tokenizer", MARKED)
        given = {"template": HERMES, "max_model_len": 4000, **given}
        script = Script(answer=answer)
        body = {"max_tokens": 900, **options}

        async def main() -> Any:
            async with connected(tokenizer, script, **given) as client:
                ask = client.stream_chat if is_stream else client.chat
                return await ask(**body), script

        return asyncio.run(main())

    return run


def prompt_of(script: Script, tokenizer: Tokenizer = MARKED) -> str:
    return tokenizer.decode(script.submits[-1].prompt_token_ids, skip_special_tokens=False)


def functions(calls: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


@pytest.mark.parametrize(
    "tokenizer", [MARKED, make_tokenizer()], ids=["special marks", "marks in text"]
)
@pytest.mark.parametrize(
    ("template", "answer"),
    [
        (HERMES, f"{CALL}\n{NOW_CALL}"),
        (
            LLAMA3,
            '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}; '
            '{"name": "now", "parameters": {}}',
        ),
        (
            QWEN3_CODER,
            "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
            "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ),
    ],
    ids=["hermes", "llama3", "qwen3_coder"],
)
def test_calls_of_every_format(
    asked: Run, template: str, answer: str, tokenizer: Tokenizer
) -> None:
    options = {"template": template, "tokenizer": tokenizer, "tools": TOOLS}
    found, _ = asked(answer, **options)
    choice = found["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] is None and message["role"] == "assistant"
    assert functions(message["tool_calls"]) == [("weather", '{"city": "Oslo"}'), ("now", "{}")]
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2 and all(name.startswith("call_") for name in ids)
    assert all(set(call) == {"id", "type", "function"} for call in message["tool_calls"])

    chunks, _ = asked(answer, is_stream=True, **options)
    assert joined_calls(chunks) == [("weather", '{"city": "Oslo"}'), ("now", "{}")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def joined_calls(chunks: list[dict[str, Any]], index: int = 0) -> list[tuple[str, str]]:
    """Calls of a stream, each piece checked for its shape."""
    calls: list[list[str]] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            for piece in choice["delta"].get("tool_calls") or ():
                if choice["index"] != index:
                    continue
                if "id" in piece:
                    assert piece["type"] == "function" and piece["index"] == len(calls)
                    assert set(piece) == {"index", "id", "type", "function"}
                    assert piece["function"]["arguments"] == ""
                    calls.append([piece["function"]["name"], ""])
                else:
                    assert set(piece) == {"index", "function"}
                    assert set(piece["function"]) == {"arguments"}
                    calls[piece["index"]][1] += piece["function"]["arguments"]
    return [(name, arguments) for name, arguments in calls]


def test_arguments_are_streamed_while_they_are_written(asked: Run) -> None:
    text = "x" * 200
    answer = f'<tool_call>{{"name": "weather", "arguments": {{"city": "{text}"}}}}</tool_call>'
    chunks, _ = asked(answer, is_stream=True, tools=TOOLS, content="hi")
    pieces = [c for c in chunks if c["choices"][0]["delta"].get("tool_calls")]
    assert len(pieces) > 20
    first = chunks[0]["choices"][0]["delta"]
    assert first == {"role": "assistant", "content": None}
    assert not any("<" in (c["choices"][0]["delta"].get("content") or "") for c in chunks)


def test_text_before_a_call(asked: Run) -> None:
    answer = f"Let me look.\n{CALL}"
    found, _ = asked(answer, tools=TOOLS)
    assert found["choices"][0]["message"]["content"] == "Let me look."
    chunks, _ = asked(answer, is_stream=True, tools=TOOLS)
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
    assert text == "Let me look." and len(joined_calls(chunks)) == 1


def test_an_answer_without_a_call(asked: Run) -> None:
    found, _ = asked("1 < 2, <tool>", tools=TOOLS)
    choice = found["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": "1 < 2, <tool>", "refusal": None}


def test_malformed_calls_are_text(asked: Run) -> None:
    answer = '<tool_call>{"name": "weather", "arguments": {"city": }}</tool_call>'
    found, _ = asked(answer, tools=TOOLS)
    choice = found["choices"][0]
    assert choice["message"]["content"] == answer and choice["finish_reason"] == "stop"


def test_a_call_that_is_cut_says_so(asked: Run) -> None:
    for is_stream in (False, True):
        found, _ = asked(
            CALL, tools=TOOLS, max_tokens=len(MARKED.encode(CALL)) - 8, is_stream=is_stream
        )
        if is_stream:
            assert found[-1]["choices"][0]["finish_reason"] == "length"
            assert joined_calls(found)[0][0] == "weather"
        else:
            assert found["choices"][0]["finish_reason"] == "length"
            assert functions(found["choices"][0]["message"]["tool_calls"])[0][0] == "weather"


def test_several_answers_with_logprobs_usage_and_stop(asked: Run) -> None:
    options = {"tools": TOOLS, "n": 2, "logprobs": True, "content": "hi"}
    found, _ = asked(f"{CALL}\n{NOW_CALL}", **options)
    for choice in found["choices"]:
        assert len(choice["message"]["tool_calls"]) == 2
        spelled = b"".join(bytes(e["bytes"]) for e in choice["logprobs"]["content"])
        assert spelled.decode().startswith(CALL)
    chunks, _ = asked(
        CALL,
        is_stream=True,
        stream_options={"include_usage": True},
        return_token_ids=True,
        **options,
    )
    assert chunks[-1]["usage"]["completion_tokens"] == found_tokens(chunks)
    for index in range(2):
        assert joined_calls(chunks, index) == [("weather", '{"city": "Oslo"}')]
        entries = [
            entry
            for chunk in chunks
            for choice in chunk["choices"]
            if choice["index"] == index and choice["logprobs"]
            for entry in choice["logprobs"]["content"]
        ]
        assert b"".join(bytes(e["bytes"]) for e in entries).decode().startswith(CALL)
    cut, _ = asked(f"{CALL}\n{NOW_CALL}", tools=TOOLS, stop="</tool_call>")
    assert functions(cut["choices"][0]["message"]["tool_calls"]) == [
        ("weather", '{"city": "Oslo"}')
    ]
    assert cut["choices"][0]["stop_reason"] == "</tool_call>"


def found_tokens(chunks: list[dict[str, Any]]) -> int:
    return sum(len(c.get("token_ids") or ()) for chunk in chunks for c in chunk["choices"])


def test_one_call_at_most(asked: Run) -> None:
    found, _ = asked(f"{CALL}\n{NOW_CALL}", tools=TOOLS, parallel_tool_calls=False)
    assert functions(found["choices"][0]["message"]["tool_calls"]) == [
        ("weather", '{"city": "Oslo"}')
    ]


def test_none_and_allowed_tools(asked: Run) -> None:
    found, script = asked(CALL, tools=TOOLS, tool_choice="none")
    assert "tool_calls" not in found["choices"][0]["message"]
    assert "weather" not in prompt_of(script)
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "now"}}],
        },
    }
    found, script = asked(f"{CALL}\n{NOW_CALL}", tools=TOOLS, tool_choice=allowed)
    message = found["choices"][0]["message"]
    assert functions(message["tool_calls"]) == [("now", "{}")] and message["content"] == CALL
    assert "weather" in prompt_of(script)


def test_what_the_model_is_told(asked: Run) -> None:
    history = [
        USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    _, script = asked("ok", tools=TOOLS, messages=history)
    text = prompt_of(script)
    assert json.loads(text.splitlines()[0]) == {
        "type": "function",
        "function": {"name": "weather", "parameters": SCHEMA},
    }
    assert '<tool_call>weather {"city": "Oslo"}</tool_call>' in text
    assert "<|im_start|>tool\nrain<|im_end|>" in text

    as_text = HERMES.replace("arguments | tojson", "arguments")
    _, script = asked("ok", tools=TOOLS, messages=history, template=as_text)
    assert '<tool_call>weather {"city": "Oslo"}</tool_call>' in prompt_of(script)
    history[1]["tool_calls"][0]["function"]["arguments"] = "no {JSON"  # type: ignore[index]
    _, script = asked("ok", tools=TOOLS, messages=history)
    assert '<tool_call>weather "no {JSON"</tool_call>' in prompt_of(script)


def test_a_template_that_knows_no_tools(asked: Run) -> None:
    plain = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    message = {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "1", "function": {"name": "now", "arguments": "{}"}}],
    }
    messages = [
        {"role": "system", "content": "Be kind."},
        USER,
        message,
        {"role": "tool", "content": "noon", "tool_call_id": "1"},
    ]
    found, script = asked(CALL, tools=TOOLS, messages=messages, template=plain)
    text = prompt_of(script)
    assert text.startswith("[system] Be kind.\n\nYou can call functions.")
    assert '"description": "The time."' in text and "<tool_call>\n{" in text
    assert f"[assistant] I look.\n{NOW_CALL}\n" in text
    assert "[user] <tool_response>\nnoon\n</tool_response>" in text
    assert found["choices"][0]["finish_reason"] == "tool_calls"


def test_calls_that_must_be_made_have_a_grammar(asked: Run) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        _, script = asked(CALL, tools=TOOLS, tool_choice=choice)
        form = script.submits[0].params.structured
        assert form.kind == "grammar" and "weather" in form.value
        assert ("now" in form.value) == (choice == "required")
        assert f"<[{MARKED.backend.token_to_id('<tool_call>')}]>" in form.value
    _, script = asked(CALL, tools=TOOLS)
    assert script.submits[0].params.structured is None
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    _, script = asked(CALL, tools=[strict])
    assert script.submits[0].params.structured.kind == "grammar"


def test_tools_beside_a_form_of_the_output(asked: Run) -> None:
    form = {"type": "json_object"}
    _, script = asked(CALL, tools=TOOLS, response_format=form)
    assert "calls | other" in script.submits[0].params.structured.value
    _, script = asked(CALL, tools=TOOLS, response_format=form, tool_choice="none")
    assert script.submits[0].params.structured == Structured.json()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": 3}, "tool_choice"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice",
    ),
    ({"tools": [WEATHER, WEATHER]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    (
        {
            "tools": [
                {"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}
            ]
        },
        "tools",
    ),
    ({"tools": TOOLS, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"chat_template": "x"}, "chat_template"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED)
def test_what_is_refused(within: Run, body: dict[str, Any], param: str) -> None:
    async def scenario(client: Client) -> None:
        error = await client.refused(PATH, {"messages": [USER], **body})
        assert error["param"] == param

    within(scenario, template=HERMES, max_model_len=4000)


def test_reasoning_is_apart(asked: Run) -> None:
    answer = f"<think>\nhm, so\n</think>\n\nYes. {CALL}"
    for is_stream in (False, True):
        found, _ = asked(answer, tools=TOOLS, template=THINKING, is_stream=is_stream)
        if is_stream:
            deltas = [c["choices"][0]["delta"] for c in found]
            for name in ("reasoning_content", "reasoning"):
                assert "".join(d.get(name) or "" for d in deltas) == "hm, so"
            assert "".join(d.get("content") or "" for d in deltas) == "Yes."
            assert joined_calls(found) == [("weather", '{"city": "Oslo"}')]
        else:
            message = found["choices"][0]["message"]
            assert message["reasoning_content"] == message["reasoning"] == "hm, so"
            assert message["content"] == "Yes."
            thought = MARKED.encode("<think>\nhm, so\n</think>", False)
            details = found["usage"]["completion_tokens_details"]
            assert details == {"reasoning_tokens": len(thought)}


def test_reasoning_that_the_prompt_opens(asked: Run) -> None:
    found, _ = asked("hm</think>\n\nYes.", template=OPENED)
    message = found["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes.")
    chunks, _ = asked(
        "hm</think>Yes.", template=OPENED, is_stream=True, stream_options={"include_usage": True}
    )
    assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3


def test_reasoning_that_the_client_does_not_want(asked: Run) -> None:
    body = {"template": THINKING, "include_reasoning": False}
    found, _ = asked("<think>hm</think>Yes.", **body)
    message = found["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes.", "refusal": None}
    chunks, _ = asked("<think>hm</think>Yes.", is_stream=True, **body)
    assert not any("reasoning" in c["choices"][0]["delta"] for c in chunks)


def test_no_reasoning_where_the_prompt_ends_it(asked: Run) -> None:
    found, script = asked(
        "Yes.", template=THINKING, chat_template_kwargs={"enable_thinking": False}
    )
    assert prompt_of(script).endswith("<think>\n\n</think>\n\n")
    assert found["choices"][0]["message"]["content"] == "Yes."


def test_parsers_can_be_chosen(asked: Run) -> None:
    config = ServerConfig(reasoning_parser="none", tool_call_parser="llama3")
    answer = '{"name": "now", "parameters": {}}'
    found, _ = asked(answer, tools=TOOLS, config=config, template=THINKING)
    assert functions(found["choices"][0]["message"]["tool_calls"]) == [("now", "{}")]
    found, _ = asked("<think>a</think>b", config=config, template=THINKING)
    # No parser of reasoning, and its marks are special tokens, which clients do not see.
    assert found["choices"][0]["message"]["content"] == "ab"


def test_a_template_of_the_request(asked: Run) -> None:
    config = ServerConfig(trust_request_chat_template=True)
    _, script = asked("a", config=config, chat_template="{{ messages[0].content }}!")
    assert prompt_of(script) == "hi!"


def test_reasoning_goes_back_to_the_template(asked: Run) -> None:
    template = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }};{% endfor %}"
    for name in ("reasoning", "reasoning_content"):
        messages = [USER, {"role": "assistant", "content": "b", name: "t"}, USER]
        _, script = asked("a", template=template, messages=messages)
        assert prompt_of(script) == "|hi;t|b;|hi;"


@pytest.mark.parametrize(
    ("parser", "begun", "answer", "thought", "said"),
    [
        ("qwen3", "<think>I am", " sure</think>Yes.", " sure", "Yes."),
        ("qwen3", "<think>I am sure</think>Yes", ", it is.", None, ", it is."),
        ("qwen3", "Yes", ", it is.", None, ", it is."),
        ("deepseek_r1", "<think>a</think>Yes", ", it is.", None, ", it is."),
        ("deepseek_r1", "I am", " sure</think>Yes.", " sure", "Yes."),
    ],
)
def test_an_answer_that_goes_on(
    asked: Run, parser: Any, begun: str, answer: str, thought: str | None, said: str
) -> None:
    messages = [USER, {"role": "assistant", "content": begun}]
    config = ServerConfig(reasoning_parser=parser)
    found, script = asked(answer, messages=messages, continue_final_message=True, config=config)
    assert prompt_of(script).endswith(begun)
    message = found["choices"][0]["message"]
    assert message["content"] == said
    assert message.get("reasoning_content", "").strip() == (thought or "").strip()
