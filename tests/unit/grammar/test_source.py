"""What each kind of form means, by the texts that it admits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLTokenizer

from octavo.core.errors import InvalidParameter
from octavo.core.params import MAX_STRUCTURED_CHARS, Structured
from octavo.grammar.source import MAX_MESSAGE, json_rule, plain
from octavo.grammar.store import compiled
from octavo.tokenizer.tokenizer import Tokenizer

PERSON = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}


@pytest.fixture
def admits(tokenizer: Tokenizer, vocabulary: LLTokenizer) -> Any:
    def check(structured: Structured, text: str) -> bool:
        matcher = compiled(structured, vocabulary)
        ids = tokenizer.encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return check


@pytest.mark.parametrize(
    "text",
    [
        '{"a":[1,2]}',
        '{"a": [1, 2]}',
        '{ "a" : [ 1 , 2 ] }',
        '{\n  "a": [\n    1,\n    2\n  ]\n}',
        '{\n\t"a": [1]}',
        '{"a":[1],"more":{"x":null}}',
    ],
)
def test_json_may_be_laid_out_as_people_do(admits: Any, text: str) -> None:
    assert admits(Structured.json(PERSON), text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"a":1}',
        "{}",
        '{  "a":[]}',
        '{\n\n"a":[]}',
        '{"a":' + " " * 40 + "[]}",
        "{\n" + " " * 33 + '"a":[]}',
        ' {"a":[]}',
        '\n{"a":[]}',
        '{"a":[]} ',
        '{"a":[]}{',
    ],
)
def test_json_is_refused_and_so_are_endless_blanks(admits: Any, text: str) -> None:
    assert not admits(Structured.json(PERSON), text)


def test_a_schema_cannot_ask_for_endless_blanks(admits: Any) -> None:
    loose = {**PERSON, "x-guidance": {"whitespace_pattern": "[ ]*", "lenient": True}}
    assert not admits(Structured.json(loose), '{  "a":[]}')
    with pytest.raises(InvalidParameter, match="uniqueItems"):
        admits(Structured.json({**loose, "uniqueItems": True, "type": "array"}), "[]")


def test_any_json(admits: Any) -> None:
    assert admits(Structured.json(), "{}") and not admits(Structured.json(), "[]")
    assert admits(Structured.json(True), "[]") and admits(Structured.json({}), "12")
    assert admits(Structured.json(' {"type": "integer"} '), "12")


def test_one_of_is_any_of(admits: Any) -> None:
    either = Structured.json({"oneOf": [{"type": "integer"}, {"type": "string"}]})
    assert admits(either, "5") and admits(either, '"x"') and not admits(either, "null")


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("abc", "abc", True),
        ("abc", "abcd", False),
        ("abc", "xabc", False),
        ("^a+$", "aaa", True),
        ("a/b", "a/b", True),
        (r"[\d]{3}|\s", "123", True),
        (r"[^\D]\d", "12", True),
        (r"\d", "٣", False),
        (r"\\", "\\", True),
        (r"\/a\nb", "/a\nb", True),
        ("", "", True),
        ("é+", "éé", True),
        (".", "\n", False),
        ("(?i)ab", "aB", True),
        ("x|", "", True),
    ],
)
def test_a_regular_expression_matches_as_a_whole(
    admits: Any, pattern: str, text: str, is_match: bool
) -> None:
    assert admits(Structured.regex(pattern), text) == is_match


def test_choices_are_taken_literally(admits: Any) -> None:
    odd = ["a", "ab", "", "é😀", 'q"\\/|.*[(', "two\nlines\t\x00\x7f", "<|im_end|>?", "# // x"]
    form = Structured.choice(odd)
    assert all(admits(form, text) for text in odd if "<|" not in text)
    assert not any(admits(form, text) for text in ("b", "a ", "a|ab", "é"))


def test_grammars_of_both_spellings(admits: Any) -> None:
    lark = Structured.grammar('start: "a" inner* END\ninner: "(" inner ")" | "x"\nEND: /[.!]/')
    gbnf = Structured.grammar('root ::= "a" inner* [.!]\ninner ::= "(" inner ")" | "x"')
    for form in (lark, gbnf):
        assert admits(form, "a((x))x.") and not admits(form, "a((x)x.")


def test_schemas_within_grammars(admits: Any) -> None:
    form = Structured.grammar(f'start: "<" {json_rule(PERSON)} ">"')
    assert admits(form, '<{"a":[]}>') and not admits(form, '<{  "a":[]}>')


@pytest.mark.parametrize(
    ("structured", "said"),
    [
        (Structured.json("{"), "cannot be used"),
        (Structured.json("[]"), "cannot be used"),
        (Structured.json({"type": "thing"}), "thing"),
        (Structured.json({"not": {}}), "not"),
        (Structured.json(False), "no text at all"),
        (Structured.json({"$ref": "http://127.0.0.1:9/x"}), "127.0.0.1"),
        (Structured.json({"type": "integer", "minimum": 2, "maximum": 1}), "cannot be used"),
        (Structured.json('{"a":' * 3000 + "1" + "}" * 3000), "cannot be used"),
        (Structured.regex("(a"), "unclosed group"),
        (Structured.regex("a(?=b)"), "look-around"),
        (Structured.regex("a\\"), "backslash"),
        (Structured.regex("(" * 5000 + ")" * 5000), "cannot be used"),
        (Structured.regex(r"[^\s\S]"), "no text at all"),
        (Structured.grammar("start: other"), "other"),
        (Structured.grammar("root ::= ("), "cannot be used"),
        (Structured.grammar(""), "cannot be used"),
        (Structured.grammar("start: " + "(" * 5000), "nested"),
        (Structured("choice", "5"), "cannot be used"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_used_is_told_in_one_line(
    vocabulary: LLTokenizer, structured: Structured, said: str
) -> None:
    with pytest.raises(InvalidParameter, match=said) as caught:
        compiled(structured, vocabulary)
    assert caught.value.param == "structured"
    message = str(caught.value)
    assert "\n" not in message and "<state>" not in message
    assert len(message) < MAX_MESSAGE + 100


def test_messages_lose_the_dump_and_the_quoted_grammar() -> None:
    assert (
        plain("at 1(8): wrong\n   1 | start: x\n           ^\n<state>\nsecret") == "at 1(8): wrong"
    )
    assert plain("") == plain("NoExtensionBias\n<non-verbose/>") != ""
    assert len(plain("x" * 10_000)) == MAX_MESSAGE


def test_values_are_checked_where_they_are_made() -> None:
    with pytest.raises(InvalidParameter, match=r"Structured\.json\("):
        Structured("json", {"type": "object"})  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="kind 'xml'"):
        Structured("xml", "")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="at most 262144"):
        Structured.regex("a" * (MAX_STRUCTURED_CHARS + 1))
    assert Structured.regex("a" * MAX_STRUCTURED_CHARS)
    for choices in ([], "ab", ["a", 5], None):
        with pytest.raises(InvalidParameter, match="list of strings"):
            Structured.choice(choices)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="JSON cannot hold"):
        Structured.json({"const": float("nan")})
    with pytest.raises(InvalidParameter, match="no pydantic model"):
        Structured.json(int)


def test_a_pydantic_model_is_its_schema() -> None:
    from pydantic import BaseModel

    class Person(BaseModel):
        age: int

    assert json.loads(Structured.json(Person).value) == Person.model_json_schema()
