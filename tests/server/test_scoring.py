"""``/v1/completions`` for prompts alone, and for the best of several outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.fake_engine import MAX_MODEL_LEN, Script
from support.http_client import Client, connected
from support.vocabularies import sentencepiece_metadata

from octavo.tokenizer.gguf import tokenizer_from_gguf

Within = Callable[..., Any]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_scored(within: Within, stream: bool) -> None:
    script = Script(num_cached_tokens=3)

    async def scenario(client: Client) -> None:
        body = {"prompt": "hello", "max_tokens": 0, "echo": True, "logprobs": 1}
        if stream:
            options = {"include_usage": True}
            chunks = await client.stream_completion(**body, stream_options=options)
            (choice,), usage = chunks[0]["choices"], chunks[1]["usage"]
            assert len(chunks) == 2
        else:
            answer = await client.complete(**body)
            (choice,), usage = answer["choices"], answer["usage"]
        assert choice == {
            "index": 0,
            "text": "hello",
            "logprobs": {
                "tokens": ["he", "l", "l", "o"],
                "token_logprobs": [None, -0.25, -0.25, -0.25],
                "top_logprobs": [None, {"l": -0.25}, {"l": -0.25}, {"o": -0.25}],
                "text_offset": [0, 2, 3, 4],
            },
            "finish_reason": "length",
        }
        assert usage == {
            "prompt_tokens": 4,
            "completion_tokens": 0,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        (submit,) = script.submits
        assert (submit.params.max_tokens, submit.params.prompt_logprobs) == (0, 1)

    within(scenario, script)


def test_prompts_in_every_form_and_several_times(within: Within) -> None:
    async def scenario(client: Client) -> None:
        encode = client.parts.tokenizer.encode
        ab, hello = encode("ab"), encode("hello")
        for prompt, texts in [
            ("ab", ["ab"]),
            (ab, ["ab"]),
            (["ab", "hello"], ["ab", "hello"]),
            ([ab, hello], ["ab", "hello"]),
        ]:
            body = {"prompt": prompt, "max_tokens": 0, "echo": True, "n": 2, "logprobs": 0}
            whole = await client.complete(**body)
            chunks = await client.stream_completion(**body)
            for choices in (whole["choices"], [c["choices"][0] for c in chunks]):
                found = {c["index"]: (c["text"], c["logprobs"]["tokens"]) for c in choices}
                assert len(choices) == len(found) == 2 * len(texts)
                for number, text in enumerate(texts):
                    assert found[2 * number] == found[2 * number + 1]
                    assert found[2 * number][0] == "".join(found[2 * number][1]) == text

    within(scenario)


def test_without_echo_there_is_nothing_but_the_cost(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.complete(prompt="ab", max_tokens=0, logprobs=1, prompt_logprobs=0)
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("", "length")
        assert all(values == [] for values in choice["logprobs"].values())
        assert [len(entry or ()) for entry in choice["prompt_logprobs"]] == [0, 1]
        assert answer["usage"]["total_tokens"] == 2
        (chunk,) = await client.stream_completion(prompt="ab", max_tokens=0)
        assert chunk["choices"][0]["text"] == ""
        assert chunk["choices"][0]["finish_reason"] == "length"

    within(scenario)


def test_a_prompt_may_fill_the_context_if_nothing_follows(within: Within) -> None:
    async def scenario(client: Client) -> None:
        prompt = [5] * MAX_MODEL_LEN
        answer = await client.complete(prompt=prompt, max_tokens=0)
        assert answer["usage"]["prompt_tokens"] == MAX_MODEL_LEN
        for body in (
            {"max_tokens": 0, "prompt": [*prompt, 5]},
            {"max_tokens": 1, "prompt": prompt},
        ):
            error = await client.refused("/v1/completions", body)
            assert error["code"] == "context_length_exceeded"
            room = MAX_MODEL_LEN - body["max_tokens"]
            assert error["message"].endswith(f"shorten it to {room} or less")
        await client.refused(
            "/v1/completions", {"prompt": prompt, "max_tokens": 0, "min_tokens": 1}
        )

    within(scenario)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_conversation_wants_an_answer(within: Within, name: str) -> None:
    async def scenario(client: Client) -> None:
        messages = [{"role": "user", "content": "hi"}]
        error = await client.refused("/v1/chat/completions", {"messages": messages, name: 0})
        assert (error["param"], error["message"]) == (name, f"{name} is 0: use 1 or more")

    within(scenario)


def _sentencepiece(scenario: Callable[[Client], Any], **options: Any) -> None:
    async def main() -> None:
        tokenizer = tokenizer_from_gguf(sentencepiece_metadata())
        async with connected(tokenizer, **options) as client:
            await scenario(client)

    asyncio.run(main())


@pytest.mark.parametrize("text", ["the fox", "é 世界 fox", " the", "<s> the", "日"])
def test_offsets_point_into_the_text_whatever_the_tokenizer_adds(text: str) -> None:
    """A SentencePiece tokenizer begins with a token of its own and a space that is not there."""

    async def scenario(client: Client) -> None:
        body = {"prompt": text, "max_tokens": 6, "echo": True, "logprobs": 0}
        answer = await client.complete(**body, ignore_eos=True)
        (choice,) = answer["choices"]
        lists, encode = choice["logprobs"], client.parts.tokenizer.encode
        num_prompt = len(encode(text))
        assert len(lists["tokens"]) == num_prompt + 6
        assert lists["text_offset"] == sorted(lists["text_offset"])
        assert choice["text"].startswith(text)
        pieces = [
            choice["text"][begin:end]
            for begin, end in zip(
                lists["text_offset"],
                [*lists["text_offset"][1:], len(choice["text"])],
                strict=True,
            )
        ]
        assert lists["text_offset"][num_prompt] == len(text)
        assert "".join(pieces) == choice["text"], "offsets begin at 0"
        for number, (token, piece) in enumerate(zip(lists["tokens"], pieces, strict=True)):
            if token.startswith("bytes:"):
                continue
            is_first_word = number <= 1 and piece in (token, token.removeprefix(" "))
            is_added = piece == "" and token in ("<s>", " ")
            assert piece == token or is_first_word or is_added, (number, token, piece)
        chunks = await client.stream_completion(**body, ignore_eos=True)
        joined = [v for chunk in chunks for v in chunk["choices"][0]["logprobs"]["text_offset"]]
        assert joined == lists["text_offset"]

    _sentencepiece(scenario)


def test_special_tokens_that_are_left_out_have_no_width(within: Within) -> None:
    async def scenario(client: Client) -> None:
        a, b = client.parts.tokenizer.encode("a"), client.parts.tokenizer.encode("b")
        body = {"prompt": [*a, 1, *b], "max_tokens": 3, "logprobs": 0, "ignore_eos": True}
        for skip, text, offsets in (
            (True, "ab", [0, 1, 1]),
            (False, "a<|im_start|>b", [0, 1, 13]),
        ):
            answer = await client.complete(**body, skip_special_tokens=skip)
            (choice,) = answer["choices"]
            assert choice["text"] == text
            assert choice["logprobs"]["text_offset"] == offsets
            assert choice["logprobs"]["tokens"] == ["a", "<|im_start|>", "b"]

    within(scenario)


def _script() -> Script:
    # The third completion is the likeliest per token, the first the least.
    return Script(logprob_of=lambda index, number: -[3.0, 1.0, 0.5, 2.0][index] - number / 10)


def test_the_best_of_several(within: Within) -> None:
    async def scenario(client: Client) -> None:
        for n, best in ((None, [2]), (2, [2, 1]), (3, [2, 1, 3])):
            answer = await client.complete(
                prompt=["ab", "cd"], n=n, best_of=4, max_tokens=2, logprobs=0
            )
            choices = answer["choices"]
            assert [choice["index"] for choice in choices] == list(range(2 * len(best)))
            expected = [-[3.0, 1.0, 0.5, 2.0][index] - 0.1 for index in best]
            found = [choice["logprobs"]["token_logprobs"][0] for choice in choices]
            assert found == pytest.approx(expected * 2)
            assert [c["text"] for c in choices] == ["ab"] * len(best) + ["cd"] * len(best)
            assert answer["usage"]["completion_tokens"] == 2 * 4 * 2, "all of them cost"

    within(scenario, _script())


def test_the_best_per_token_and_not_in_all(within: Within) -> None:
    """A long output is no worse for being long."""
    script = Script(logprob_of=lambda index, number: -0.5 if index else -0.6)

    async def scenario(client: Client) -> None:
        answer = await client.complete(prompt="ab", best_of=2, max_tokens=9)
        (choice,) = answer["choices"]
        assert choice["logprobs"] is None, "they are for the server to choose by"
        assert [submit.params.logprobs for submit in script.submits] == [0]
        assert script.submits[0].params.n == 2
        answer = await client.complete(prompt="ab", best_of=2, n=2, max_tokens=1, logprobs=0)
        found = [choice["logprobs"]["token_logprobs"] for choice in answer["choices"]]
        assert found == [[-0.6], [-0.5]], "nothing to choose: in the order of their index"

    within(scenario, script)


def test_what_best_of_cannot_be(within: Within) -> None:
    async def scenario(client: Client) -> None:
        for fields, said in (
            ({"best_of": 1, "n": 2}, "best_of is 1, and n is 2: use 2 to 128 for best_of"),
            ({"best_of": 129}, "use 1 to 128 for best_of"),
            ({"best_of": 3, "stream": True}, "cannot be streamed"),
            ({"best_of": 64, "prompt": ["a"] * 17}, "17 prompts with best_of = 64"),
        ):
            error = await client.refused("/v1/completions", {"prompt": "a", **fields})
            assert error["param"] == "best_of" and said in error["message"]
        await client.stream_completion(prompt="a", best_of=2, n=2, max_tokens=1)
        error = await client.refused("/v1/completions", {"prompt": "a", "suffix": "b"})
        assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
        await client.complete(prompt="a", user="somebody", max_tokens=1)

    within(scenario)
