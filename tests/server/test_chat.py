from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.fake_engine import MAX_MODEL_LEN, Script
from support.http_client import Client

Within = Callable[..., Any]
PATH = "/v1/chat/completions"


def user(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def test_an_answer_is_whole(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.chat("hi", max_tokens=4)
        assert answer["object"] == "chat.completion"
        assert answer["id"].startswith("chatcmpl-")
        (choice,) = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": "user", "refusal": None}
        assert choice["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 4
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}

    within(scenario, Script(num_cached_tokens=3))


def test_the_end_of_a_turn_ends_the_answer(within: Within) -> None:
    async def scenario(client: Client) -> None:
        choice = (await client.chat("hi"))["choices"][0]
        assert choice["message"]["content"] == "user\nhi"
        assert choice["finish_reason"] == "stop"
        assert "stop_reason" not in choice

    within(scenario)


def test_the_default_length_is_the_rest_of_the_context(within: Within) -> None:
    async def scenario(client: Client) -> None:
        usage = (await client.chat("hi", ignore_eos=True))["usage"]
        assert usage["total_tokens"] == MAX_MODEL_LEN

    within(scenario)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 2},
        {"logprobs": True, "top_logprobs": 2},
        {"stop": "r\nh"},
        {"return_token_ids": True},
        {"max_completion_tokens": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("content", ["hi", "😀 世"])
def test_a_stream_joined_is_the_whole(within: Within, content: str, options: Any) -> None:
    async def scenario(client: Client) -> None:
        whole = await client.chat(content, **options)
        chunks = await client.stream_chat(
            content, **options, stream_options={"include_usage": True}
        )
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        pieces = [choice for chunk in chunks for choice in chunk["choices"]]
        for choice in whole["choices"]:
            mine = [piece for piece in pieces if piece["index"] == choice["index"]]
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert all(set(piece["delta"]) == {"content"} for piece in mine[1:])
            text = "".join(piece["delta"]["content"] for piece in mine)
            assert text == choice["message"]["content"]
            assert mine[-1]["finish_reason"] == choice["finish_reason"]
            if choice["logprobs"] is not None:
                entries = [e for piece in mine[1:] for e in piece["logprobs"]["content"]]
                assert entries == choice["logprobs"]["content"]
            if "token_ids" in choice:
                assert [t for piece in mine[1:] for t in piece["token_ids"]] == choice["token_ids"]
                assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]

    within(scenario)


def test_log_probabilities_carry_exact_bytes(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.chat("😀", ignore_eos=True, logprobs=True, top_logprobs=3)
        entries = answer["choices"][0]["logprobs"]["content"]
        raw = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert "😀".encode() in raw
        assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
        assert entries[0]["top_logprobs"][0]["token"] == entries[0]["token"]

    within(scenario)


def prompt_text(within: Within, messages: list[Any], **body: Any) -> str:
    async def scenario(client: Client) -> str:
        tokens = await client.http.post("/tokenize", json={"messages": messages, **body})
        assert tokens.status_code == 200, tokens.text
        script.submits.clear()
        answer = await client.http.post(PATH, json={"messages": messages, "max_tokens": 1, **body})
        assert answer.status_code == 200, answer.text
        assert list(script.submits[0].prompt_token_ids) == tokens.json()["tokens"]
        back = await client.http.post("/detokenize", json={"tokens": tokens.json()["tokens"]})
        text: str = back.json()["prompt"]
        return text

    script = Script()
    result: str = within(scenario, script, max_model_len=500)
    return result


def test_messages_become_the_prompt_of_the_template(within: Within) -> None:
    text = prompt_text(
        within,
        [
            {"role": "system", "content": "s"},
            user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], name="ann"),
            {"role": "assistant", "content": "c", "tool_calls": None, "refusal": None},
            {"role": "tool", "content": "d", "tool_call_id": "1"},
        ],
    )
    assert text == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user ann\nab<|im_end|>\n"
        "<|im_start|>assistant\nc<|im_end|>\n<|im_start|>tool\nd<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_newer_name_of_the_system_role(within: Within) -> None:
    text = prompt_text(within, [{"role": "developer", "content": "s"}, user()])
    assert text.startswith("<|im_start|>system\ns<|im_end|>")


def test_options_of_the_template(within: Within) -> None:
    text = prompt_text(
        within,
        [user()],
        add_generation_prompt=False,
        chat_template_kwargs={"extra": "more"},
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\nmore"


def test_an_answer_that_goes_on(within: Within) -> None:
    begun = [user(), {"role": "assistant", "content": " The answer: ("}]
    text = prompt_text(within, begun, continue_final_message=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n The answer: ("


@pytest.mark.parametrize(
    ("template", "end"),
    [("{{ messages[0].content | trim }}!", "b"), ("{{ messages[0].content }}!", "b ")],
)
def test_templates_may_strip_what_goes_on(within: Within, template: str, end: str) -> None:
    async def scenario(client: Client) -> None:
        body = {"messages": [user("a b ")], "continue_final_message": True}
        tokens = (await client.http.post("/tokenize", json=body)).json()["tokens"]
        back = (await client.http.post("/detokenize", json={"tokens": tokens})).json()
        assert back["prompt"] == f"a {end}"

    within(scenario, template=template)


@pytest.mark.parametrize(
    ("messages", "options", "words"),
    [
        ([user()], {"add_generation_prompt": True}, "are both true"),
        ([user(" ")], {}, "the last message is empty"),
    ],
)
def test_what_cannot_go_on(within: Within, messages: Any, options: Any, words: str) -> None:
    async def scenario(client: Client) -> None:
        body = {"messages": messages, "continue_final_message": True, **options}
        for path in (PATH, "/tokenize"):
            assert words in (await client.refused(path, body))["message"]

    within(scenario)


def test_a_role_that_the_template_knows(within: Within) -> None:
    template = "{% for m in messages %}{% if m.role == 'critic' %}C{% endif %}{% endfor %}x"

    async def scenario(client: Client) -> None:
        body = {"messages": [{"role": "critic", "content": ""}], "max_tokens": 2}
        answer = await client.http.post(PATH, json=body)
        assert answer.json()["choices"][0]["message"]["content"] == "Cx"

    within(scenario, template=template)


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([], "messages", "empty"),
        (None, "messages", "use a list"),
        ("hi", "messages", "use a list"),
        (["hi"], "messages[0]", "use an object"),
        ([user(), {"role": "user"}], "messages[1].content", "missing"),
        ([user(None)], "messages[0].content", "use a string or a list of text parts"),
        ([user(5)], "messages[0].content", "use a string or a list of text parts"),
        ([user([5])], "messages[0].content[0]", "use an object"),
        ([user([{"type": "image_url", "image_url": {"url": "x"}}])], None, "'image_url'"),
        ([user([{"type": "input_audio", "input_audio": {}}])], None, "'input_audio'"),
        ([user([{"type": "text"}])], "messages[0].content[0].text", "missing"),
        ([{"role": "usre", "content": "hi"}], "messages[0].role", "'usre'"),
        ([{"content": "hi"}], "messages[0].role", "missing"),
        ([user(nmae="x")], "messages[0].nmae", "did you mean name"),
        ([user(tool_calls=[{}])], "messages[0].tool_calls[0].function", "missing"),
    ],
)
def test_messages_that_cannot_be_served(
    within: Within, messages: Any, param: str | None, words: str
) -> None:
    async def scenario(client: Client) -> None:
        for path in (PATH, "/tokenize"):
            if path == "/tokenize" and messages is None:
                continue
            error = await client.refused(path, {"messages": messages})
            assert words in error["message"]
            assert param is None or error["param"] == param

    within(scenario)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_completion_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 1000}, "max_completion_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"add_generation_prompt": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
    ids=str,
)
def test_options_that_cannot_be_served(within: Within, body: dict[str, Any], param: str) -> None:
    async def scenario(client: Client) -> None:
        error = await client.refused(PATH, {"messages": [user()], **body})
        assert error["param"] == param

    within(scenario)


def test_a_model_without_a_template(within: Within) -> None:
    async def scenario(client: Client) -> None:
        error = await client.refused(PATH, {"messages": [user()]})
        assert error["param"] == "messages"
        assert "--chat-template" in error["message"]

    within(scenario, template=None)


def test_what_a_template_refuses(within: Within) -> None:
    async def scenario(client: Client) -> None:
        error = await client.refused(PATH, {"messages": [user()]})
        assert "roles must alternate" in error["message"]

    within(scenario, template="{{ raise_exception('roles must alternate') }}")


def test_a_conversation_must_fit_the_context(within: Within) -> None:
    async def scenario(client: Client) -> None:
        empty = await client.http.post("/tokenize", json={"messages": [user("")]})
        room = MAX_MODEL_LEN - empty.json()["count"]
        answer = await client.chat("z" * (room - 1), ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 1
        for more in (room, room + 1):
            error = await client.refused(PATH, {"messages": [user("z" * more)]})
            assert error["code"] == "context_length_exceeded"
            assert error["param"] == "messages"

    within(scenario)


def test_log_probabilities_of_the_prompt(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.chat("hi", max_tokens=1, prompt_logprobs=1)
        entries = answer["prompt_logprobs"]
        assert len(entries) == answer["usage"]["prompt_tokens"]
        assert entries[0] is None
        assert all(len(entry) == 1 for entry in entries[1:])

    within(scenario)
