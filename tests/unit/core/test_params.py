from __future__ import annotations

import math

import pytest

from octavo.core.errors import InvalidParameter
from octavo.core.params import MAX_SEED, SamplingParams, validate_against_vocab

RANGES = {
    "n": (1, 128, 0, 129),
    "temperature": (0, 100, -0.01, 100.1),
    "top_p": (1e-9, 1.0, 0.0, 1.01),
    "top_k": (0, 2**31 - 1, -2, 2**31),
    "min_p": (0.0, 1.0, -0.1, 1.1),
    "seed": (-MAX_SEED - 1, MAX_SEED, -MAX_SEED - 2, MAX_SEED + 1),
    "repetition_penalty": (0.01, 10.0, 0.009, 10.1),
    "presence_penalty": (-2.0, 2.0, -2.1, 2.1),
    "frequency_penalty": (-2.0, 2.0, -2.1, 2.1),
    "max_tokens": (0, 2**31 - 1, -1, 2**31),
    "logprobs": (0, 2**31 - 1, -1, 2**31),
    "prompt_logprobs": (0, 2**31 - 1, -1, 2**31),
}


@pytest.mark.parametrize("name", RANGES)
def test_limits_are_allowed_and_one_beyond_is_refused_by_name(name):
    low, high, below, above = RANGES[name]
    for value in (low, high):
        assert getattr(SamplingParams(**{name: value}), name) == value
    for value in (below, above):
        with pytest.raises(InvalidParameter, match=name) as caught:
            SamplingParams(**{name: value})
        assert caught.value.param == name
        assert str(value) in str(caught.value) or f"{value:g}" in str(caught.value)


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("value", ["1", True, math.nan, [1], 1.5])
def test_wrong_types_are_refused(name, value):
    if value == 1.5 and name in (
        "temperature",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
    ):
        assert getattr(SamplingParams(**{name: value}), name) == 1.5
        return
    with pytest.raises(InvalidParameter, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("value", ["max", "", 1, True, ["mean"]])
def test_an_unknown_pooling_is_refused(value):
    assert SamplingParams(pooling="last").pooling == "last"
    with pytest.raises(InvalidParameter, match=r"pooling is .*: use mean or last") as caught:
        SamplingParams(pooling=value)
    assert caught.value.param == "pooling"


def test_min_tokens_has_its_own_limits():
    assert SamplingParams(min_tokens=0).min_tokens == 0
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    for bad in ({"min_tokens": -1}, {"min_tokens": 6, "max_tokens": 5}):
        with pytest.raises(InvalidParameter, match="min_tokens"):
            SamplingParams(**bad)


def test_spellings_are_normalised():
    params = SamplingParams(stop="x", bad_words=["a"], stop_token_ids=[1], top_k=-1)
    assert (params.stop, params.bad_words, params.stop_token_ids) == (("x",), ("a",), (1,))
    assert params.top_k == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("stop", [1]),
        ("stop", 5),
        ("bad_words", [""]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", "1"),
        ("allowed_token_ids", []),
        ("logit_bias", {1: 100.1}),
        ("logit_bias", {1: -100.1}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: "1"}),
        ("bad_words_token_ids", ((),)),
    ],
)
def test_lists_are_checked(name, value):
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_sixteen_stops_and_the_largest_bias_are_fine():
    assert len(SamplingParams(stop=["x"] * 16).stop) == 16
    assert SamplingParams(logit_bias={1: 100.0, 2: -100.0}).logit_bias[1] == 100


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {10: 1.0}},
        {"allowed_token_ids": [3, 10]},
        {"stop_token_ids": [10]},
        {"bad_words_token_ids": ((1, 10),)},
    ],
)
def test_ids_beyond_the_vocabulary(params):
    (name,) = params
    with pytest.raises(InvalidParameter, match=f"{name} has token id 10: this model's are 0 to 9"):
        validate_against_vocab(SamplingParams(**params), 10)
    validate_against_vocab(SamplingParams(**params), 11)
