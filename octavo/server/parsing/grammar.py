"""Grammars of answers: calls with arguments by their tool's schema, and what may be around them.

They are written as `llguidance` reads Lark, where a mark that is a token of its own is named by its
id: spelled as text it would be other tokens than those that the model was trained on.
"""

from __future__ import annotations

import json
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
        """The answer is calls, or as the rule ``other`` has it."""
        start = f"start: {self._before(thinking)}(calls | other)"
        return self._text(start, thinking, f"{self._calls()}\nother: {other}")

    def text_and_calls(self, thinking: str | None) -> str:
        """The answer is text, with calls where their mark is."""
        before = self._before(thinking)
        call = f"call: {self._call_body()}"
        if self.form == "llama3":
            mark = self._mark(LLAMA3.begin)
            start = f"start: {before}(call | plain? ({mark} call)?)\nplain: /[^{{\\s](.|\\n)*/"
            return self._text(start, thinking, call)
        mark = self._mark(HERMES.begin)
        repeated = "*" if self.is_parallel else "?"
        if mark.startswith("<"):
            trigger = f"marked: TEXT {mark} call"
        else:
            trigger = f"trigger[lazy]: TEXT {mark}\nmarked: trigger call"
        start = f"start: {before}marked{repeated} last\nlast: TEXT\n{trigger}\nTEXT: {_TEXT}"
        return self._text(start, thinking, call)

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
