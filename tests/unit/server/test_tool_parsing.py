"""What the parsers find in answers as models write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.answers import TOOLS, read, read_whole
from support.fake_engine import make_tokenizer

from octavo.core.errors import InvalidParameter
from octavo.server.parsing.events import AnswerParser, ToolCallArguments, ToolCallStart
from octavo.server.parsing.formats import AnswerFormat, CallFormat, answer_format
from octavo.server.parsing.plan import plan_answer
from octavo.server.parsing.tools import Tool, ToolUse

TOKENIZER = make_tokenizer()
ARGUMENTS = '{"city": "Oslo \\"N\\"", "days": 2}'
CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
LLAMA_CALL = f'{{"name": "weather", "parameters": {ARGUMENTS}}}'


def parser(calls: CallFormat = "hermes", prompt: str = "", **options: Any) -> AnswerParser:
    is_eager = options.pop("is_eager", False)
    form = AnswerFormat(calls=calls, reasoning=options.pop("reasoning", "none"))
    use = ToolUse(tools=TOOLS, mode="auto", **options)
    make = plan_answer(form, TOKENIZER, use=use, prompt=prompt).make_parser
    return make(is_eager)


FOUND: list[tuple[CallFormat, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Just text. ", "Just text. ", []),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [("weather", ARGUMENTS)]),
    (
        "hermes",
        f'Let me see.\n\n<tool_call>{CALL}</tool_call>\n<tool_call>{{"name": "now"}}</tool_call>\n',
        "Let me see.",
        [("weather", ARGUMENTS), ("now", "{}")],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {}, "id": [1, {"a": "}"}], "name": "now"}</tool_call> so',
        "so",
        [("now", "{}")],
    ),
    ("hermes", f"a <tool_call>{CALL} b", "a  b", [("weather", ARGUMENTS)]),
    ("hermes", "1 < 2 and <tool", "1 < 2 and <tool", []),
    ("hermes", "<tool_call> is a mark", "<tool_call> is a mark", []),
    ("llama3", LLAMA_CALL, "", [("weather", ARGUMENTS)]),
    ("llama3", f"<|python_tag|>{LLAMA_CALL}", "", [("weather", ARGUMENTS)]),
    (
        "llama3",
        f'\n{LLAMA_CALL}; {{"name": "now", "parameters": {{}}}}',
        "",
        [("weather", ARGUMENTS), ("now", "{}")],
    ),
    ("llama3", '{"name": "Ann", "parameters": 3}', '{"name": "Ann", "parameters": 3}', []),
    ("llama3", '{"name": "now"}', '{"name": "now"}', []),
    ("llama3", "It is: " + LLAMA_CALL, "It is: " + LLAMA_CALL, []),
    ("llama3", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    (
        "qwen3_coder",
        "Yes.\n<tool_call>\n<function=weather>\n<parameter=city>\nNew\n<b>\n\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n<parameter=unit>\nC\n</parameter>\n"
        "<parameter=exact>\nTrue\n</parameter>\n<parameter=spots>\n[1, 2.5]\n</parameter>\n"
        "<parameter=more>\n{}\n</parameter>\n</function>\n</tool_call>",
        "Yes.",
        [
            (
                "weather",
                '{"city": "New\\n<b>\\n", "days": 2, "unit": "C", "exact": true, "spots": '
                '[1, 2.5], "more": {}}',
            )
        ],
    ),
    ("qwen3_coder", "<function=now>\n</function>", "", [("now", "{}")]),
    ("qwen3_coder", "<tool_call>\n<function=now>\n</tool_call> .", ".", [("now", "{}")]),
    ("qwen3_coder", "<function=rm>\n</function>", "<function=rm>\n</function>", []),
    (
        "qwen3_coder",
        "<function=weather><parameter=days>\nsoon\n</parameter></function>",
        "",
        [("weather", '{"days": "soon"}')],
    ),
]


@pytest.mark.parametrize(("calls", "text", "content", "found"), FOUND)
@pytest.mark.parametrize("is_eager", [False, True])
def test_what_is_found(
    calls: CallFormat, text: str, content: str, found: list[Any], is_eager: bool
) -> None:
    assert read_whole(parser(calls, is_eager=is_eager), text) == (content, "", found)
    for _, arguments in found:
        json.loads(arguments)


MALFORMED: list[tuple[CallFormat, str]] = [
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": }}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "a\nb"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 1, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "name": "now"}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"n": 01}, "name": "now"}</tool_call>'),
    ("hermes", '<tool_call>[{"name": "now"}]</tool_call>'),
    ("hermes", '<tool_call>{"name": "now"'),
    ("llama3", '{"name": "now", "parameters": {]}'),
    ("qwen3_coder", "<function=now>\nhm</function>"),
    ("qwen3_coder", "<function=now"),
]


@pytest.mark.parametrize(("calls", "text"), MALFORMED)
def test_what_is_malformed_is_text(calls: CallFormat, text: str) -> None:
    assert read_whole(parser(calls), text) == (text, "", [])
    assert read(parser(calls), list(text)) == (text, "", [])


def test_in_a_stream_arguments_come_as_they_are_written() -> None:
    reader = parser(is_eager=True)
    assert reader.feed('<tool_call>\n{"name": "weather", "argu') == []
    start, first = reader.feed('ments": {"city": "Os')
    assert isinstance(start, ToolCallStart)
    assert (start.index, start.name, first) == (0, "weather", ToolCallArguments(0, '{"city": "Os'))
    assert start.id.startswith("call_") and len(start.id) > 20
    assert reader.feed('lo"}') == [ToolCallArguments(0, 'lo"}')]
    assert reader.feed("}\n</tool_call>") == []
    assert reader.finish() == []


def test_in_a_stream_what_turns_out_to_be_wrong_ends_the_call() -> None:
    text = '<tool_call>{"name": "now", "arguments": {"a": tru!}}</tool_call>'
    expected = ("!}}</tool_call>", "", [("now", '{"a": tru')])
    assert read_whole(parser(is_eager=True), text) == expected
    assert read(parser(is_eager=True), list(text)) == expected


@pytest.mark.parametrize("is_eager", [False, True])
def test_a_call_that_was_cut_has_the_beginning_of_its_arguments(is_eager: bool) -> None:
    for calls, text, arguments in (
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": [1, "b', '{"a": [1, "b'),
        ("llama3", '{"name": "now", "parameters": {"a"', '{"a"'),
        ("qwen3_coder", "<function=weather>\n<parameter=city>\nOs", '{"city": "Os'),
    ):
        found = read_whole(parser(calls, is_eager=is_eager), text)  # type: ignore[arg-type]
        assert found[0] == "" and [call[1] for call in found[2]] == [arguments]


def test_only_the_first_call_where_there_may_be_one() -> None:
    text = f'<tool_call>{CALL}</tool_call>\n<tool_call>{{"name": "now"}}</tool_call> end'
    assert read_whole(parser(is_parallel=False), text)[2] == [("weather", ARGUMENTS)]


def test_only_the_allowed_tools() -> None:
    text = f'<tool_call>{CALL}</tool_call>\n<tool_call>{{"name": "now"}}</tool_call>'
    content, _, calls = read_whole(parser(only=["now"]), text)
    assert calls == [("now", "{}")] and content == f"<tool_call>{CALL}</tool_call>"


@pytest.mark.parametrize(
    ("reasoning", "prompt", "text", "expected"),
    [
        ("qwen3", "", "<think>\nhm, so\n\n</think>\n\nYes", ("Yes", "hm, so")),
        ("qwen3", "...<think>\n", "hm </think> Yes", ("Yes", "hm")),
        ("qwen3", "...<think>\n\n</think>\n\n", "Yes", ("Yes", "")),
        ("qwen3", "", "No </think> here", ("No </think> here", "")),
        ("qwen3", "", "a <think>b</think>", ("a <think>b</think>", "")),
        ("qwen3", "a <think> b", "Yes", ("Yes", "")),
        ("qwen3", "<think>", "hm", ("", "hm")),
        ("qwen3", "", "<thin", ("<thin", "")),
        ("deepseek_r1", "", "hm</think>Yes", ("Yes", "hm")),
        ("deepseek_r1", "", "<think>hm</think>Yes", ("Yes", "hm")),
        ("none", "<think>", "<think>hm</think>Yes", ("<think>hm</think>Yes", "")),
    ],
)
def test_reasoning(reasoning: Any, prompt: str, text: str, expected: tuple[str, str]) -> None:
    for pieces in ([text], list(text)):
        found = read(parser(reasoning=reasoning, prompt=prompt), pieces)
        assert found == (*expected, [])


def test_a_call_after_reasoning() -> None:
    found = read_whole(parser("llama3", reasoning="qwen3"), f"<think>{CALL}</think>\n{LLAMA_CALL}")
    assert found == ("", CALL, [("weather", ARGUMENTS)])


HERMES_SOURCE = "{%- if tools %}<tool_call>{% endif %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (None, AnswerFormat()),
        ("{{ messages }}", AnswerFormat()),
        (HERMES_SOURCE, AnswerFormat(calls="hermes", shows_tools=True)),
        (
            HERMES_SOURCE + "{{ c.split('</think>') }}",
            AnswerFormat(calls="hermes", reasoning="qwen3", shows_tools=True),
        ),
        (
            HERMES_SOURCE + "<function=x><parameter=y>",
            AnswerFormat(calls="qwen3_coder", shows_tools=True),
        ),
        (
            '{% if tools is not none %}ipython {"parameters": {% endif %}',
            AnswerFormat(calls="llama3", shows_tools=True),
        ),
    ],
)
def test_the_format_is_told_by_the_template(source: str | None, expected: AnswerFormat) -> None:
    assert answer_format(source) == expected
    told = answer_format(source, "llama3", "deepseek_r1")
    assert (told.calls, told.reasoning) == ("llama3", "deepseek_r1")


def test_tools_that_contradict_each_other() -> None:
    for options, param in (
        ({"tools": [TOOLS[1], TOOLS[1]], "mode": "auto"}, "tools"),
        ({"tools": TOOLS, "mode": "required", "only": ["other"]}, "tool_choice"),
        ({"tools": [], "mode": "required"}, "tool_choice"),
        ({"tools": [Tool(name="a", parameters={"type": "string"})]}, "tools"),
    ):
        with pytest.raises(InvalidParameter) as caught:
            ToolUse(**options)  # type: ignore[arg-type]
        assert caught.value.param == param
