from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from support.fake_engine import MAX_MODEL_LEN, Script
from support.http_client import Client

Within = Callable[..., Any]


def test_a_completion_is_whole(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.complete(prompt="hello world", max_tokens=5)
        assert answer["object"] == "text_completion"
        assert answer["id"].startswith("cmpl-")
        assert answer["model"] == "echo"
        (choice,) = answer["choices"]
        assert choice == {
            "index": 0,
            "text": "hello w",
            "logprobs": None,
            "finish_reason": "length",
        }
        assert answer["usage"] == {
            "prompt_tokens": 9,
            "completion_tokens": 5,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 8},
        }

    within(scenario, Script(num_cached_tokens=8))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 3},
        {"logprobs": 2},
        {"echo": True},
        {"echo": True, "logprobs": 1, "n": 2},
        {"stop": ["o w"], "include_stop_str_in_output": True},
        {"stop": "world"},
        {"return_token_ids": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("prompt", ["hello world", "emoji 😀 世界 é", ["ab", "hello"]], ids=str)
def test_a_stream_joined_is_the_whole(within: Within, prompt: Any, options: dict[str, Any]) -> None:
    async def scenario(client: Client) -> None:
        body = {"prompt": prompt, "max_tokens": 20, **options}
        whole = await client.complete(**body)
        chunks = await client.stream_completion(**body, stream_options={"include_usage": True})
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == whole["usage"]
        assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
        pieces = [choice for chunk in chunks for choice in chunk["choices"]]
        for choice in whole["choices"]:
            mine = [piece for piece in pieces if piece["index"] == choice["index"]]
            assert "".join(piece["text"] for piece in mine) == choice["text"]
            assert [piece["finish_reason"] for piece in mine[:-1]] == [None] * (len(mine) - 1)
            assert mine[-1]["finish_reason"] == choice["finish_reason"]
            assert mine[-1].get("stop_reason") == choice.get("stop_reason")
            if choice["logprobs"] is not None:
                for name, values in choice["logprobs"].items():
                    assert [v for piece in mine for v in piece["logprobs"][name]] == values
            if "token_ids" in choice:
                assert [t for piece in mine for t in piece["token_ids"]] == choice["token_ids"]
                assert mine[0]["prompt_token_ids"] == choice["prompt_token_ids"]

    within(scenario)


def test_prompts_in_every_form(within: Within) -> None:
    async def scenario(client: Client) -> None:
        encode = client.parts.tokenizer.encode
        ab, hello = encode("ab"), encode("hello")
        for prompt, texts in [
            ("ab", ["abab"]),
            (ab, ["abab"]),
            (["ab", "hello"], ["abab", "hello"]),
            ([ab, hello], ["abab", "hello"]),
            (["ab"], ["abab"]),
            ([ab], ["abab"]),
        ]:
            answer = await client.complete(prompt=prompt, max_tokens=4)
            assert [choice["text"] for choice in answer["choices"]] == texts
            assert answer["usage"]["prompt_tokens"] == sum(
                len(encode(text)) for text in (["ab", "hello"] if len(texts) == 2 else ["ab"])
            )

    within(scenario)


def test_choices_are_numbered_prompt_by_prompt(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.complete(prompt=["ab", "cd", "ef"], n=2, max_tokens=2)
        found = [(choice["index"], choice["text"]) for choice in answer["choices"]]
        assert found == [(0, "ab"), (1, "ab"), (2, "cd"), (3, "cd"), (4, "ef"), (5, "ef")]
        assert answer["usage"]["prompt_tokens"] == 6
        assert answer["usage"]["completion_tokens"] == 12

    within(scenario)


def test_echo_with_logprobs_covers_prompt_and_output(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.complete(prompt="hello", max_tokens=2, echo=True, logprobs=2)
        (choice,) = answer["choices"]
        assert choice["text"] == "hellohel"
        lists = choice["logprobs"]
        assert lists["tokens"] == ["he", "l", "l", "o", "he", "l"]
        assert lists["token_logprobs"] == [None, -0.25, -0.25, -0.25, -0.25, -0.25]
        assert lists["text_offset"] == [0, 2, 3, 4, 5, 7]
        assert lists["top_logprobs"][0] is None
        assert lists["top_logprobs"][1] == {"l": -0.25, "m": -1.25}

    within(scenario)


def test_echo_of_prompts_in_every_form(within: Within) -> None:
    async def scenario(client: Client) -> None:
        ab, special = client.parts.tokenizer.encode("ab"), [1, 10]
        spelled = "<|im_start|>" + client.parts.tokenizer.decode([10])
        for prompt, texts in [
            ("ab", ["aba"]),
            (["ab", "c"], ["aba", "cc"]),
            (ab, ["aba"]),
            ([ab, special], ["aba", spelled]),
        ]:
            answer = await client.complete(prompt=prompt, max_tokens=1, echo=True)
            assert [choice["text"] for choice in answer["choices"]] == texts

    within(scenario)


def test_echo_gives_as_many_alternatives_as_each_parameter_asks_for(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.complete(
            prompt="hello", max_tokens=1, echo=True, logprobs=1, prompt_logprobs=3
        )
        (choice,) = answer["choices"]
        assert [len(top or ()) for top in choice["logprobs"]["top_logprobs"]] == [0, 1, 1, 1, 1]
        assert [len(top or ()) for top in choice["prompt_logprobs"]] == [0, 3, 3, 3]

    within(scenario)


def test_offsets_and_spellings_of_tokens_that_are_no_characters(within: Within) -> None:
    async def scenario(client: Client) -> None:
        tokenizer = client.parts.tokenizer
        token_ids = [tokenizer.encode(piece)[0] for piece in ("a",)]
        emoji = tokenizer.encode("😀")
        assert len(emoji) > 1
        prompt = [*token_ids, *emoji, *tokenizer.encode("b")]
        answer = await client.complete(prompt=prompt, max_tokens=len(prompt), logprobs=0)
        lists = answer["choices"][0]["logprobs"]
        assert answer["choices"][0]["text"] == "a😀b"
        assert lists["tokens"][0] == "a" and lists["tokens"][-1] == "b"
        assert all(token.startswith("bytes:\\x") for token in lists["tokens"][1:-1])
        assert len(set(lists["tokens"][1:-1])) == len(emoji)
        assert lists["text_offset"] == [0, *[1] * len(emoji), 2]

    within(scenario)


def test_the_default_length_is_16_or_what_is_left(within: Within) -> None:
    async def scenario(client: Client) -> None:
        assert (await client.complete(prompt=[5]))["usage"]["completion_tokens"] == 16
        long = [5] * (MAX_MODEL_LEN - 3)
        assert (await client.complete(prompt=long))["usage"]["completion_tokens"] == 3

    within(scenario)


def test_prompt_and_output_must_fit_the_context(within: Within) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.complete(prompt=[5] * (MAX_MODEL_LEN - 1))
        assert answer["usage"]["completion_tokens"] == 1
        for length in (MAX_MODEL_LEN, MAX_MODEL_LEN + 1):
            error = await client.refused("/v1/completions", {"prompt": [5] * length})
            assert error["code"] == "context_length_exceeded"
            assert error["param"] == "prompt"
            assert f"{length} tokens" in error["message"]
            assert f"{MAX_MODEL_LEN - 1} or less" in error["message"]
        body = {"prompt": [5] * 60, "max_tokens": 5}
        error = await client.refused("/v1/completions", body)
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == "max_tokens"
        assert "65: 60 for the prompt and 5" in error["message"]
        await client.complete(**{**body, "max_tokens": 4})

    within(scenario)


def test_what_cannot_happen_has_a_log_probability_that_json_can_hold(within: Within) -> None:
    async def scenario(client: Client) -> None:
        lists = (await client.complete(prompt="ab", max_tokens=1, logprobs=1))["choices"][0]
        assert lists["logprobs"]["token_logprobs"] == [-9999.0]
        chat = await client.chat("ab", max_tokens=1, logprobs=True, top_logprobs=1)
        (entry,) = chat["choices"][0]["logprobs"]["content"]
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] == -9999.0

    within(scenario, Script(best_logprob=-math.inf))


def test_usage_on_every_chunk(within: Within) -> None:
    async def scenario(client: Client) -> None:
        chunks = await client.stream_completion(
            prompt="ab", max_tokens=3, stream_options={"continuous_usage_stats": True}
        )
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3]
        chunks = await client.stream_completion(prompt="ab", max_tokens=3)
        assert all("usage" not in chunk for chunk in chunks)
        chunks = await client.stream_completion(
            prompt="ab", max_tokens=3, stream_options={"include_usage": True}
        )
        assert [chunk["usage"] is None for chunk in chunks] == [True, True, True, False]

    within(scenario)


def test_defaults_of_the_model_come_before_those_of_the_api(within: Within) -> None:
    script = Script()

    async def scenario(client: Client) -> None:
        await client.complete(prompt="ab")
        await client.complete(prompt="ab", temperature=0, top_k=None)
        first, second = (submit.params for submit in script.submits)
        assert (first.temperature, first.top_k, first.top_p) == (0.25, 7, 1.0)
        assert (second.temperature, second.top_k) == (0.0, 7)

    within(scenario, script, generation_defaults={"temperature": 0.25, "top_k": 7})


def test_every_parameter_reaches_the_engine(within: Within) -> None:
    script = Script()
    plain = {
        "temperature": 0.5,
        "top_p": 0.75,
        "n": 2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "seed": 11,
        "top_k": 5,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "min_tokens": 2,
        "max_tokens": 3,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "logprobs": 1,
        "prompt_logprobs": 2,
    }
    lists = {"stop": ["x"], "stop_token_ids": [9], "allowed_token_ids": [5, 6]}

    async def scenario(client: Client) -> None:
        await client.complete(
            prompt="ab",
            **plain,
            **lists,
            bad_words=["q"],
            logit_bias={"7": -100},
            priority=-3,
            cache_salt="mine",
        )
        (submit,) = script.submits
        assert {name: getattr(submit.params, name) for name in plain} == plain
        assert {name: list(getattr(submit.params, name)) for name in lists} == lists
        assert submit.params.logit_bias == {7: -100.0}
        encode = client.parts.tokenizer.encode
        assert submit.params.bad_words_token_ids == (tuple(encode("q")), tuple(encode(" q")))
        assert (submit.priority, submit.cache_salt) == (-3, "mine")

    within(scenario, script)
