"""Every message, with anything in every field, survives being encoded."""

from __future__ import annotations

import types
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.config import EngineConfig
from octavo.core.params import SamplingParams, Structured
from octavo.transport.messages import FromEngine, ToEngine

IDS = st.integers(0, 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
WORDS = st.lists(TEXT.filter(bool), max_size=16)
PARAMS: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(1, 128),
    "temperature": st.floats(0, 100),
    "top_p": st.floats(0.001, 1),
    "top_k": IDS,
    "min_p": st.floats(0, 1),
    "seed": st.none() | st.integers(-(2**63), 2**63 - 1),
    "repetition_penalty": st.floats(0.01, 10),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(IDS, st.floats(-100, 100)),
    "allowed_token_ids": st.none() | st.lists(IDS, min_size=1),
    "structured": st.none()
    | st.builds(Structured, st.sampled_from(["json", "regex", "choice", "grammar"]), TEXT),
    "bad_words": WORDS,
    "bad_words_token_ids": st.lists(st.lists(IDS, min_size=1).map(tuple)).map(tuple),
    "pooling": st.sampled_from([None, "mean", "last"]),
    "stop": WORDS,
    "stop_token_ids": st.lists(IDS),
    "include_stop_str_in_output": st.booleans(),
    "ignore_eos": st.booleans(),
    "min_tokens": st.integers(0, 5),
    "max_tokens": st.none() | st.integers(5, 2**31 - 1),
    "logprobs": st.none() | IDS,
    "prompt_logprobs": st.none() | IDS,
    "skip_special_tokens": st.booleans(),
    "speculative": st.booleans(),
    "spaces_between_special_tokens": st.booleans(),
    "shown_special_token_ids": st.lists(IDS),
}
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: TEXT,
    types.NoneType: st.none(),
    SamplingParams: st.builds(SamplingParams, **PARAMS),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any values of a type, those of all its fields included."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is tuple and arguments[-1] is not ...:
        return st.tuples(*map(values_of, arguments))
    if origin in (tuple, frozenset):
        return st.lists(values_of(arguments[0]), max_size=3).map(origin)
    if origin is dict:
        return st.dictionaries(*map(values_of, arguments), max_size=3)
    return st.builds(hint, **{n: values_of(kind) for n, kind in get_type_hints(hint).items()})


@pytest.mark.parametrize("kind", get_args(ToEngine) + get_args(FromEngine))
def test_messages_survive(kind: Any) -> None:
    union = ToEngine if kind in get_args(ToEngine) else FromEngine
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(union)

    @settings(max_examples=60, deadline=None)
    @given(values_of(kind))
    def survives(message: Any) -> None:
        found = decoder.decode(encoder.encode(message))
        assert type(found) is kind
        assert found == message

    survives()


def test_every_sampling_parameter_is_among_those_sent() -> None:
    assert {item.name for item in fields(SamplingParams)} == set(PARAMS)


def test_configuration_survives_its_way_to_the_engine_process() -> None:
    config = EngineConfig.from_options(
        model="a/b\n", max_model_len=512, memory_utilization=0.25, policy="priority", num_threads=3
    )
    line = msgspec.json.encode(config)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=EngineConfig) == config
