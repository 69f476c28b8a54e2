from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from octavo.core.errors import InvalidParameter
from octavo.core.params import SamplingParams
from octavo.front.submission import Options, make_submit
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.transport.messages import Submit

VOCAB_SIZE = 300


def submit(
    tokenizer: Tokenizer,
    prompt: Sequence[Any] = (1, 2, 3),
    params: SamplingParams | None = None,
    **options: Any,
) -> Submit:
    given = {"request_id": "a", "priority": 0, "cache_salt": "", "eos_token_ids": frozenset({2})}
    return make_submit(
        prompt,
        params or SamplingParams(),
        Options(**{**given, **options}),
        tokenizer=tokenizer,
        vocab_size=VOCAB_SIZE,
    )


def test_everything_that_was_asked_is_in_the_message(tokenizer: Tokenizer) -> None:
    params = SamplingParams(n=2, seed=-7)
    assert submit(tokenizer, [0, 299], params, priority=-3, cache_salt="世") == Submit(
        request_id="a",
        prompt_token_ids=(0, 299),
        params=params,
        seed=-7,
        eos_token_ids=frozenset({2}),
        priority=-3,
        cache_salt="世",
    )


def test_seeds_are_drawn_for_those_who_bring_none(tokenizer: Tokenizer) -> None:
    seeds = {submit(tokenizer).seed for _ in range(50)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**56


def test_bad_words_become_token_ids(tokenizer: Tokenizer) -> None:
    params = submit(tokenizer, params=SamplingParams(bad_words=("fox",))).params
    assert tuple(tokenizer.encode("fox", add_special_tokens=False)) in params.bad_words_token_ids


def test_whole_numbers_of_other_libraries_are_token_ids(tokenizer: Tokenizer) -> None:
    prompt = submit(tokenizer, np.array([4, 5])).prompt_token_ids
    assert prompt == (4, 5)
    assert {type(token) for token in prompt} == {int}


def test_empty_prompt_is_left_to_the_scheduler(tokenizer: Tokenizer) -> None:
    assert submit(tokenizer, []).prompt_token_ids == ()


@pytest.mark.parametrize(
    ("prompt", "what"),
    [
        ([1, 300], "token id 300: this model's are 0 to 299"),
        ([-1, 5], "token id -1"),
        (["a"], "no list of token ids"),
        ([1.0], "no list of token ids"),
        ("text", "no list of token ids"),
        ([None], "no list of token ids"),
    ],
)
def test_prompt_that_holds_other_than_token_ids_is_refused(
    tokenizer: Tokenizer, prompt: Sequence[Any], what: str
) -> None:
    with pytest.raises(InvalidParameter, match=what) as caught:
        submit(tokenizer, prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("param", "options", "params"),
    [
        ("request_id", {"request_id": "x\ud800"}, {}),
        ("cache_salt", {"cache_salt": "\udfff"}, {}),
        ("stop", {}, {"stop": ("ok", "a\ud83d")}),
        ("bad_words", {}, {"bad_words": ("\ud83d",)}),
        ("priority", {"priority": 2**63}, {}),
        ("priority", {"priority": -(2**63) - 1}, {}),
        ("stop_token_ids", {}, {"stop_token_ids": (300,)}),
        ("logit_bias", {}, {"logit_bias": {300: 1.0}}),
    ],
)
def test_what_the_engine_would_stumble_over_is_refused_by_name(
    tokenizer: Tokenizer, param: str, options: dict[str, Any], params: dict[str, Any]
) -> None:
    with pytest.raises(InvalidParameter, match=param) as caught:
        submit(tokenizer, params=SamplingParams(**params), **options)
    assert caught.value.param == param
    str(caught.value).encode()  # the message itself can be sent


def test_place_of_the_broken_character_is_told(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidParameter, match=r"'\\ud800' at position 2"):
        submit(tokenizer, cache_salt="ab\ud800")


@pytest.mark.parametrize("name", ["a#1", "#12", "a#b#7", "a\n#3"])
def test_names_of_further_completions_are_refused(tokenizer: Tokenizer, name: str) -> None:
    """Else the second completion of ``a`` and the client's own ``a#1`` would be the same."""
    with pytest.raises(InvalidParameter, match="further completion of request") as info:
        submit(tokenizer, request_id=name)
    assert info.value.param == "request_id"


@pytest.mark.parametrize("name", ["a#", "a#0", "a#1b", "#", "a#01"])
def test_other_names_may_have_a_hash(tokenizer: Tokenizer, name: str) -> None:
    assert submit(tokenizer, request_id=name).request_id == name
