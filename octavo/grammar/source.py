"""From what a client asks for to a grammar in the library's own terms."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from octavo.core.errors import InvalidParameter
from octavo.core.params import Structured

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # in the stubs only

WHITESPACE = r" |\n[ \t]{0,32}"
"""Between the tokens of JSON: nothing, one space, or one line break and its indentation. Without a
bound, a small model may go on with blanks until its output is full."""

JSON_OPTIONS: JsonCompileOptions = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": WHITESPACE,
    "coerce_one_of": True,
    "lenient": False,
}
"""How schemas become grammars. They win over a schema's own ``x-guidance``, so that every answer
has bounded blanks and no keyword is ignored; ``oneOf`` becomes ``anyOf``."""

MAX_MESSAGE = 300
"""Characters of a complaint; the library quotes grammars in its own at any length."""

_QUOTED_LINE = re.compile(r"\s*(\d+ \|.*|\^*)")


def parser_limits() -> LLParserLimits:
    """What one grammar may cost: ambiguity, memory, and the work of a step."""
    return LLParserLimits(
        max_items_in_row=10_000,
        step_max_items=100_000,
        step_lexer_fuel=100_000,
        max_lexer_states=20_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def grammar_source(structured: Structured) -> str:
    """The grammar as `llguidance` reads it. It may still turn out to be wrong when it is compiled.

    Raises:
        InvalidParameter: it is not even well-formed.
    """
    value = structured.value
    try:
        match structured.kind:
            case "json":
                schema = _object_schema(value)
                return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
            case "regex":
                return LLMatcher.grammar_from_regex(_ascii_digits(value))
            case "choice":
                choices = json.loads(value)
                return LLMatcher.grammar_from_regex("|".join(map(_literal, choices)))
            case "grammar":
                return LLMatcher.grammar_from_lark(any_to_lark(value))
    except Exception as error:  # the library's converters raise anything, RecursionError included
        raise complaint(structured, f"{type(error).__name__}: {error}") from None


def complaint(structured: Structured, reason: str) -> InvalidParameter:
    """The error that tells a client what is wrong with its grammar."""
    what = {"json": "JSON schema", "regex": "regular expression"}.get(
        structured.kind, structured.kind
    )
    return InvalidParameter(
        f"the {what} for structured output cannot be used: {plain(reason)}", param="structured"
    )


def plain(message: str) -> str:
    """A message of the library in one line, without its dump of the parser's state."""
    for mark in ("<state>", "<non-verbose/>", "<grammar>"):
        message = message.partition(mark)[0]
    lines = [line for line in message.splitlines() if not _QUOTED_LINE.fullmatch(line)]
    line = " ".join(" ".join(lines).split())
    if line in ("", "NoExtensionBias"):
        line = "no text at all has this form"
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - 1]}…"


def json_rule(schema: Mapping[str, Any]) -> str:
    """A schema as part of a Lark grammar, with the same bounds on blanks as a schema by itself."""
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_OPTIONS}, ensure_ascii=False)}"


def _object_schema(value: str) -> str:
    """A schema as an object. The schemas true and false, which the library takes in other places,
    it does not take in this one."""
    match value.strip():
        case "true":
            return "{}"
        case "false":
            raise ValueError("no text at all has this form")
    return value


def _ascii_digits(pattern: str) -> str:
    r"""``\d`` as 0 to 9: nobody who writes it wants all the digits that Unicode has."""
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise ValueError("it ends in a lone backslash")
    return regex_to_lark(pattern, "d")


def _literal(text: str) -> str:
    """A regular expression that matches this text alone."""
    return "".join(
        char if char.isascii() and char.isalnum() else rf"\x{{{ord(char):X}}}" for char in text
    )
