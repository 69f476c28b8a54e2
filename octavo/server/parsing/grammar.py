"""Grammars of answers: calls with arguments by their tool's schema, and what may be around them.

They are written as `llguidance` reads Lark, where a mark that is a token of its own is named by its
id: spelled as text it would be other tokens than those that the model was trained on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.grammar.source import json_rule
from octavo.server.parsing import reasoning
from octavo.server.parsing.formats import CallFormat
from octavo.server.parsing.json_calls import HERMES, LLAMA3
from octavo.server.parsing.tools import Tool
from octavo.server.parsing.xml_rules import xml_call
from octavo.tokenizer.tokenizer import Tokenizer

MAX_CALLS = 32
"""In one answer whose form is enforced; a small model might not stop by itself."""

_TEXT = r"/(.|\n)*/"


@dataclass(slots=True)
class CallGrammar:
    """Rules for the calls of one format.

    Args:
        enforced: names of the tools whose arguments must satisfy their schema.
    """

    form: CallFormat
    tools: Sequence[Tool]
    enforced: frozenset[str]
    is_parallel: bool
    tokenizer: Tokenizer
    _rules: list[str] = field(default_factory=list)

    def calls_only(self, thinking: str | None) -> str:
        """The answer is one call or several; before them reasoning, by a rule from `thinking`."""
        return self._text(f"start: {self._before(thinking)}calls", thinking, self._calls())

    def calls_or(self, other: str, thinking: str | None) -> str:
        """The answer is calls, or as the rule ``other``, which is JSON, has it."""
        calls = self._bare_json() if self.form == "llama3" else self._calls()
        start = f"start: {self._before(thinking)}(calls | other)"
        return self._text(start, thinking, f"{calls}\nother: {other}")

    def text_and_calls(self, thinking: str | None) -> str:
        """The answer is text, with calls where their mark is."""
        begin = LLAMA3.begin if self.form == "llama3" else HERMES.begin
        mark, call = self._mark(begin), f"call: {self._call_body()}"
        if mark.startswith("<"):
            marked = f"marked: TEXT {mark} call"
        else:
            marked = f"trigger[lazy]: TEXT {mark}\nmarked: trigger call"
        if self.form == "llama3":
            answer, text = "call | marked | TEXT", self._text_without_call(thinking)
        else:
            answer, text = f"marked{'*' if self.is_parallel else '?'} TEXT", _TEXT
        start = f"start: {self._before(thinking)}({answer})"
        return self._text(start, thinking, f"{marked}\n{call}\nTEXT: {text}")

    def _text_without_call(self, thinking: str | None) -> str:
        """Text that begins neither with an object nor with reasoning."""
        text = r"/([^{\s](.|\n)*)?/"
        begin = self._mark(reasoning.BEGIN)
        if thinking is None or begin.startswith("<"):
            return text
        return rf"{text} & ~/{re.escape(reasoning.BEGIN)}(.|\n)*/"

    def _bare_json(self) -> str:
        """A call that begins like any JSON, so that no text of it may be told apart too early."""
        bodies = []
        for tool in self.tools:
            schema = tool.schema if tool.name in self.enforced else {"type": "object"}
            shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            own = {key: value for key, value in schema.items() if key not in shared}
            whole = {
                **shared,
                "type": "object",
                "properties": {"name": {"const": tool.name}, "parameters": own},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            bodies.append(json_rule(whole))
        return f"calls: {' | '.join(bodies)}"

    def _text(self, start: str, thinking: str | None, rules: str) -> str:
        thought = "" if thinking is None else f"thought: {thinking}\n"
        return "\n".join(["%llguidance {}", start, thought + rules, *self._rules])

    def _before(self, thinking: str | None) -> str:
        return "" if thinking is None else "thought "

    def _calls(self) -> str:
        body = self._call_body()
        if self.form == "llama3":
            return f"calls: call\ncall: {body}"
        more = f' ("\\n" call){{0,{MAX_CALLS - 1}}}' if self.is_parallel else ""
        return f"calls: call{more}\ncall: {self._mark(HERMES.begin)} {body}"

    def _call_body(self) -> str:
        """A call without its first mark."""
        self._rules = []
        bodies = [self._one(number, tool) for number, tool in enumerate(self.tools)]
        body = f"({' | '.join(bodies)})"
        if self.form == "llama3":
            return body
        end = self._mark(HERMES.end)
        return f'"\\n" {body} "\\n" {end}'

    def _one(self, number: int, tool: Tool) -> str:
        schema = tool.schema if tool.name in self.enforced else {"type": "object"}
        if self.form == "qwen3_coder":
            body, rules = xml_call(tool, schema, f"tool_{number}")
            self._rules += rules
            return body
        key = "parameters" if self.form == "llama3" else "arguments"
        self._rules.append(f"arguments_{number}: {json_rule(schema)}")
        name = json.dumps(tool.name)
        head = json.dumps(f'{{"name": {name}, "{key}": ', ensure_ascii=False)
        return f'{head} arguments_{number} "}}"'

    def _mark(self, text: str) -> str:
        return mark(text, self.tokenizer)


def mark(text: str, tokenizer: Tokenizer) -> str:
    """A mark in a grammar: a token, or text."""
    token_id = mark_id(text, tokenizer)
    return json.dumps(text) if token_id is None else f"<[{token_id}]>"


def mark_id(text: str, tokenizer: Tokenizer) -> int | None:
    """The token that is this mark, if there is one."""
    return next((i for i, spelled in tokenizer.added_tokens.items() if spelled == text), None)


def thinking_rule(tokenizer: Tokenizer, *, is_open: bool) -> str:
    """What may be before the answer: reasoning up to its end, which is optional unless the prompt
    has opened it."""
    begin, end = mark(reasoning.BEGIN, tokenizer), mark(reasoning.END, tokenizer)
    inner = f"{_TEXT} {end}" if end.startswith("<") else "thought_end"
    blanks = '"\\n"{0,2}'
    rule = f"{inner} {blanks}" if is_open else f"({begin} {inner} {blanks})?"
    if not end.startswith("<"):
        rule += f"\nthought_end[lazy]: {_TEXT} {end}"
    return rule
