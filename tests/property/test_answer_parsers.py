"""However the text of an answer is cut, what is found in it is the same, and nothing gets lost."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from support.answers import TOOLS, read, read_whole
from support.fake_engine import make_tokenizer

from octavo.server.parsing.formats import AnswerFormat, CallFormat, ReasoningFormat
from octavo.server.parsing.json_scanner import JsonScanner, State
from octavo.server.parsing.plan import plan_answer
from octavo.server.parsing.tools import ToolUse

TOKENIZER = make_tokenizer()
FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "<think>", "</think>", "\n", " ", ";"),
        *("<function=weather>", "<function=now>", "<function=other>", "</function>", "<", "<tool"),
        *("<parameter=city>", "<parameter=days>", "<parameter=new>", "</parameter>", "</param"),
        *('{"name": "weather", ', '"arguments": {', '"parameters": {', "}", "{", "5", '"', "\\"),
        *('{"name": "now", "arguments": {}}', '{"name": "weather", "parameters": {"city": "é"}}'),
        *(
            '{"name": "other", "arguments": {}}',
            '"city": "Oslo\\n😀"',
            "text",
            ",",
            ":",
            "[1, -2e3]",
        ),
    ]
)
TEXTS = st.lists(FRAGMENTS | st.text(max_size=3), max_size=14).map("".join)
FORMATS: list[CallFormat] = ["hermes", "llama3", "qwen3_coder"]
REASONING: list[ReasoningFormat] = ["none", "qwen3", "deepseek_r1"]


@settings(deadline=None, max_examples=600)
@given(
    TEXTS,
    st.sampled_from(FORMATS),
    st.sampled_from(REASONING),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_cuts_make_no_difference(
    text: str,
    calls: CallFormat,
    reasoning: ReasoningFormat,
    is_eager: bool,
    is_parallel: bool,
    data: st.DataObject,
) -> None:
    form = AnswerFormat(calls=calls, reasoning=reasoning)
    use = ToolUse(tools=TOOLS, mode="auto", is_parallel=is_parallel)
    make = plan_answer(form, TOKENIZER, use=use).make_parser
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=9)))
    pieces = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    whole = read_whole(make(is_eager), text)
    assert read(make(is_eager), pieces) == whole
    assert read(make(is_eager), list(text)) == whole
    assert len(whole[2]) <= (99 if is_parallel else 1)


@settings(deadline=None, max_examples=500)
@given(TEXTS, st.sampled_from(FORMATS))
def test_an_answer_without_calls_is_its_text(text: str, calls: CallFormat) -> None:
    make = plan_answer(
        AnswerFormat(calls=calls), TOKENIZER, use=ToolUse(tools=TOOLS, mode="auto")
    ).make_parser
    content, _, found = read_whole(make(False), text)
    if not found:
        assert content == text


@settings(deadline=None, max_examples=500)
@given(TEXTS, st.sampled_from(FORMATS))
def test_arguments_of_finished_calls_are_json(text: str, calls: CallFormat) -> None:
    make = plan_answer(
        AnswerFormat(calls=calls), TOKENIZER, use=ToolUse(tools=TOOLS, mode="auto")
    ).make_parser
    _, _, found = read_whole(make(False), text + "\n</tool_call>!")
    for name, arguments in found[:-1]:
        assert name in {tool.name for tool in TOOLS}
        assert isinstance(json.loads(arguments), dict)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def scan(text: str) -> State:
    scanner, at = JsonScanner(), 0
    while at < len(text) and scanner.state not in (State.DONE, State.WRONG):
        at = scanner.step(text, at)
    return scanner.state if at == len(text) or scanner.state is State.WRONG else State.WRONG


@settings(deadline=None, max_examples=1000)
@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_all_json_is_json(value: object, indent: int | None, is_ascii: bool) -> None:
    text = json.dumps({"a": value}, indent=indent, ensure_ascii=is_ascii)
    assert scan(text) is State.DONE
    assert scan(text[:-1]) not in (State.DONE, State.WRONG)


@settings(deadline=None, max_examples=600)
@given(st.text('{}[]",:\\ \nu0123e+-.truefalsn\t', max_size=12))
def test_nothing_else_is(inner: str) -> None:
    text = "[" + inner + "]"
    try:
        json.loads(text)
    except ValueError:
        assert scan(text) is not State.DONE
    else:
        assert scan(text) is State.DONE
