"""What comes out is valid, by libraries that know nothing of how it was made."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.json_schemas import Schema, schemas

from octavo import LLM, SamplingParams, Structured

ONCE = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


@pytest.fixture(scope="module")
def tiny(tiny_model: Any) -> LLM:
    return LLM(str(tiny_model), num_blocks=2048, num_threads=1, max_num_seqs=64)


@pytest.fixture(scope="module")
def smollm2() -> LLM:
    return LLM("smollm2", num_blocks=400, max_model_len=512)


def answers(llm: LLM, forms: Sequence[Structured], prompt: str, **options: Any) -> list[Any]:
    params = [
        SamplingParams(structured=form, **{"seed": number, "max_tokens": 300, **options})
        for number, form in enumerate(forms)
    ]
    outputs = llm.generate([prompt] * len(forms), params, progress=False)
    found = [output.outputs[0] for output in outputs]
    assert [one.error for one in found] == [None] * len(found)
    return found


def check_json(llm: LLM, wanted: list[Schema], prompt: str, **options: Any) -> int:
    """Checks all that have ended; returns how many those were."""
    found = answers(llm, [Structured.json(schema) for schema in wanted], prompt, **options)
    ended = 0
    for schema, one in zip(wanted, found, strict=True):
        if one.finish_reason == "stop":
            ended += 1
            jsonschema_rs.validate(schema, json.loads(one.text))
    return ended


def test_random_tokens_become_valid_json(tiny: LLM) -> None:
    total = ended = 0

    @settings(max_examples=15, **ONCE)
    @given(st.lists(schemas, min_size=20, max_size=20))
    def valid(wanted: list[Schema]) -> None:
        nonlocal total, ended
        total += len(wanted)
        ended += check_json(tiny, wanted, "x", temperature=1.5)

    valid()
    assert total >= 300 and ended > 0.9 * total


PATTERNS = [
    r"[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8}){1,2}",
    r"(19|20)\d{2}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    r"(?:\+|00)\d{1,3}[ -]\d{4,9}",
    r"[^@\s]{1,9}@[a-z]{1,9}\.(com|org)",
    r"(?i:yes|no)[.!]?",
    r"\$\d{1,3}(,\d{3}){0,2}(\.\d\d)?",
    r"(«[^»]{0,9}»|[äöü]+){1,4}",
    "a|ab|abc|",
]


def test_random_tokens_match_expressions(tiny: LLM) -> None:
    forms = [Structured.regex(pattern) for pattern in PATTERNS]
    for seed in range(3):
        for pattern, one in zip(
            PATTERNS, answers(tiny, forms, "x", temperature=1.5, seed=seed), strict=True
        ):
            assert one.finish_reason == "stop" and re.fullmatch(pattern, one.text), pattern


ARITHMETIC = """
start: sum
sum: product (("+" | "-") product){0,3}
product: atom ("*" atom){0,2}
atom: NUMBER | "(" sum ")"
NUMBER: /[1-9][0-9]{0,2}/
"""


@pytest.mark.real_model
def test_the_real_model_writes_valid_json(smollm2: LLM) -> None:
    @settings(max_examples=1, **ONCE)
    @given(st.lists(schemas, min_size=16, max_size=16, unique_by=str))
    def valid(wanted: list[Schema]) -> None:
        prompt = "An example of the data, as JSON:\n"
        assert check_json(smollm2, wanted, prompt, temperature=0.8, max_tokens=80) >= 12

    valid()


@pytest.mark.real_model
def test_the_real_model_keeps_to_expressions_choices_and_grammars(smollm2: LLM) -> None:
    choices = ["London", "Paris", "New York"]
    forms = [
        *map(Structured.regex, PATTERNS),
        Structured.choice(choices),
        Structured.grammar(ARITHMETIC),
    ]
    found = answers(smollm2, forms, "The capital of France is", temperature=0, max_tokens=60)
    for pattern, one in zip(PATTERNS, found, strict=False):
        assert one.finish_reason == "length" or re.fullmatch(pattern, one.text), pattern
    assert found[-2].text.strip() == "Paris"
    assert re.fullmatch(r"[0-9+*()-]+", found[-1].text)
    if found[-1].finish_reason == "stop":
        assert isinstance(eval(found[-1].text), int)
