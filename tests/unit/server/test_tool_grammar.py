"""Grammars of calls: what they admit is a call that the parser finds, with valid arguments."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer
from support.answers import TOOLS, content_of
from support.fake_engine import make_tokenizer
from support.json_schemas import schemas
from support.tool_tokens import marked_tokenizer

from octavo.core.errors import UnsupportedParameter
from octavo.core.params import Structured
from octavo.grammar.store import compiled
from octavo.grammar.vocabulary import make_vocabulary
from octavo.server.parsing.answer import parse_answer
from octavo.server.parsing.formats import AnswerFormat, CallFormat, ReasoningFormat
from octavo.server.parsing.plan import AnswerPlan, plan_answer
from octavo.server.parsing.tools import Tool, ToolUse
from octavo.tokenizer.tokenizer import Tokenizer

EOS = 2
TEXT, MARKED = make_tokenizer(), marked_tokenizer()
STRICT = Tool(name="weather", parameters=TOOLS[0].parameters, strict=True)
FORMATS: list[CallFormat] = ["hermes", "llama3", "qwen3_coder"]


@cache
def vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    return make_vocabulary(tokenizer, vocab_size=500, eos_token_ids=[EOS])


def plan(
    calls: CallFormat,
    tokenizer: Tokenizer = MARKED,
    *,
    reasoning: ReasoningFormat = "none",
    prompt: str = "",
    wanted: Structured | None = None,
    **use: Any,
) -> AnswerPlan:
    use = {"tools": TOOLS, "mode": "required", **use}
    form = AnswerFormat(calls=calls, reasoning=reasoning)
    return plan_answer(form, tokenizer, use=ToolUse(**use), prompt=prompt, wanted=wanted)


def admits(found: AnswerPlan, text: str, tokenizer: Tokenizer = MARKED) -> bool:
    assert found.structured is not None
    matcher = compiled(found.structured, vocabulary(tokenizer))
    ids = tokenizer.encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def written(calls: CallFormat, city: str = "Oslo", days: str = "2") -> str:
    """A call as the model should write it."""
    if calls == "qwen3_coder":
        return (
            f"<tool_call>\n<function=weather>\n<parameter=city>\n{city}\n</parameter>\n"
            f"<parameter=days>\n{days}\n</parameter>\n</function>\n</tool_call>"
        )
    key = "parameters" if calls == "llama3" else "arguments"
    call = f'{{"name": "weather", "{key}": {{"city": "{city}", "days": {days}}}}}'
    return call if calls == "llama3" else f"<tool_call>\n{call}\n</tool_call>"


@pytest.mark.parametrize("tokenizer", [TEXT, MARKED], ids=["marks in text", "special marks"])
@pytest.mark.parametrize("calls", FORMATS)
def test_a_call_and_nothing_else(calls: CallFormat, tokenizer: Tokenizer) -> None:
    found, good = plan(calls, tokenizer), written(calls)
    assert admits(found, good, tokenizer)
    answer = content_of(parse_answer(found.make_parser(False), good))
    assert answer == ("", "", [("weather", '{"city": "Oslo", "days": 2}')])
    for bad in (
        "",
        "Hello",
        f"Hello {good}",
        f"{good} bye",
        good.replace("weather", "other"),
        good.replace("city", "town"),
        written(calls, days='"2"'),
        written(calls, days="2.5"),
        good[:-1],
    ):
        assert not admits(found, bad, tokenizer), bad


@pytest.mark.parametrize("calls", ["hermes", "qwen3_coder"])
def test_several_calls_where_they_may_be(calls: CallFormat) -> None:
    good = written(calls)
    assert admits(plan(calls), f"{good}\n{good}")
    assert not admits(plan(calls, is_parallel=False), f"{good}\n{good}")
    assert not admits(plan(calls), "\n".join([good] * 33))
    assert not admits(plan(calls, only=["now"]), good)


@pytest.mark.parametrize("tokenizer", [TEXT, MARKED], ids=["marks in text", "special marks"])
@pytest.mark.parametrize("calls", FORMATS)
def test_strict_tools_that_need_not_be_called(calls: CallFormat, tokenizer: Tokenizer) -> None:
    found, good = plan(calls, tokenizer, mode="auto", tools=[STRICT]), written(calls)
    assert plan(calls, mode="auto").structured is None
    for text in ("Hello, 1 < 2.\n\nSo.", good, ""):
        assert admits(found, text, tokenizer), text
    mark = "<|python_tag|>" if calls == "llama3" else ""
    assert admits(found, f"I look.\n{mark}{good}", tokenizer)
    for bad in (written(calls, days='"x"'), good.replace("city", "town")):
        assert not admits(found, bad, tokenizer), bad
        assert not admits(found, f"I look.\n{mark}{bad}", tokenizer)
    if calls != "llama3":
        assert admits(found, f"{good}\n{good}\nDone.", tokenizer)


@pytest.mark.parametrize("tokenizer", [TEXT, MARKED], ids=["marks in text", "special marks"])
@pytest.mark.parametrize("calls", FORMATS)
def test_reasoning_may_come_first(calls: CallFormat, tokenizer: Tokenizer) -> None:
    good = written(calls)
    free, opened = (
        plan(calls, tokenizer, reasoning="qwen3", prompt=prompt) for prompt in ("", "..<think>\n")
    )
    closed = plan(calls, tokenizer, reasoning="qwen3", prompt="<think>\n\n</think>\n\n")
    thought = f"hm {{\n</think>\n\n{good}"
    for found, text, is_admitted in (
        (free, good, True),
        (free, f"<think>\n{thought}", True),
        (free, thought, False),
        (opened, thought, True),
        (opened, good, False),
        (closed, good, True),
        (closed, f"<think>\n{thought}", False),
    ):
        assert admits(found, text, tokenizer) == is_admitted, text
    strict = plan(calls, tokenizer, reasoning="qwen3", mode="auto", tools=[STRICT])
    assert admits(strict, f"<think>\n{thought}", tokenizer)
    assert admits(strict, "<think>hm</think>\n\nYes.", tokenizer)
    assert not admits(strict, f"<think>a</think>{written(calls, days='null')}", tokenizer)


@pytest.mark.parametrize("calls", FORMATS)
def test_json_or_calls(calls: CallFormat) -> None:
    wanted = Structured.json({"type": "object", "properties": {"ok": {"type": "boolean"}}})
    found = plan(calls, mode="auto", wanted=wanted)
    assert admits(found, '{"ok": true}') and admits(found, written(calls))
    assert not admits(found, '{"ok": 1}') and not admits(found, "Hello")
    thinking = plan(calls, reasoning="qwen3", prompt="<think>", mode="none", wanted=wanted)
    assert admits(thinking, 'hm</think>\n\n{"ok": true}') and not admits(thinking, '{"ok": true}')


def test_values_in_tags() -> None:
    found = plan("qwen3_coder")
    head, tail = (
        "<tool_call>\n<function=weather>\n<parameter=city>\n",
        "\n</function>\n</tool_call>",
    )
    for city, more, is_admitted in (
        ("a\n<b>\n\n", "", True),
        ("Oslo", "<parameter=unit>\nC\n</parameter>", True),
        ("Oslo", "<parameter=unit>\nK\n</parameter>", False),
        ("Oslo", "<parameter=exact>\nnull\n</parameter>", True),
        ("Oslo", "<parameter=spots>\n[1, 2.5]\n</parameter>", True),
        ("Oslo", "<parameter=spots>\n1\n</parameter>", False),
    ):
        text = f"{head}{city}\n</parameter>" + (f"\n{more}" if more else "") + tail
        assert admits(found, text) == is_admitted, text
        if is_admitted:
            _, _, [(_, arguments)] = content_of(parse_answer(found.make_parser(False), text))
            values = json.loads(arguments)
            assert values["city"] == city
            jsonschema_rs.validate(TOOLS[0].schema, values)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "x"}}}, "pattern"),
        ({"properties": {"a>b": {"type": "string"}}}, "another name"),
        ({"properties": {}, "required": ["a"]}, "requires 'a'"),
    ],
)
def test_what_tags_cannot_enforce(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedParameter, match=said) as caught:
        plan("qwen3_coder", tools=[Tool(name="f", parameters=parameters)])
    assert caught.value.param == "tools"


def test_whatever_is_admitted_is_a_valid_call() -> None:
    ended = 0

    @settings(deadline=None, max_examples=80, derandomize=True)
    @given(schemas, st.sampled_from(["hermes", "llama3"]), st.integers(0, 9999))
    def check(inner: dict[str, Any], calls: CallFormat, seed: int) -> None:
        nonlocal ended
        schema = {
            "$defs": inner.get("$defs", {}),
            "type": "object",
            "properties": {"x": {key: value for key, value in inner.items() if key != "$defs"}},
            "required": ["x"],
            "additionalProperties": False,
        }
        found = plan(calls, tools=[Tool(name="f", parameters=schema)], is_parallel=False)
        text = walk(found, random.Random(seed))
        if text is None:
            return
        ended += 1
        content, _, called = content_of(parse_answer(found.make_parser(False), text))
        assert content == "" and [name for name, _ in called] == ["f"]
        jsonschema_rs.validate(schema, json.loads(called[0][1]))

    check()
    assert ended > 40


def walk(found: AnswerPlan, chance: random.Random) -> str | None:
    """A random text of the grammar; None if none has come to an end in time."""
    assert found.structured is not None
    matcher = compiled(found.structured, vocabulary(MARKED))
    closing = {i for char in '"}],' for i in MARKED.encode(char, False)}
    tokens: list[int] = []
    for _ in range(600):
        if matcher.is_stopped():
            break
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
        if EOS in allowed:
            break
        liked = [token for token in allowed if token in closing]
        token = chance.choice(liked if liked and chance.random() < 0.5 else allowed)
        assert matcher.consume_token(token)
        tokens.append(token)
    else:
        return None
    text = MARKED.decode(tokens, skip_special_tokens=False)
    return None if "\ufffd" in text else text
