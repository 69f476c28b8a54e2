"""How the answer of one request is read, and what form it must have: known before it is sent.

Needs no HTTP: every dialect of the API makes a `ToolUse` of what it was sent, and gets from
`plan_answer` the parser of each answer and the grammar for the engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.core.errors import InvalidParameter, UnsupportedParameter
from octavo.core.params import Structured
from octavo.core.types import TokenId
from octavo.grammar.source import json_rule
from octavo.server.parsing import reasoning
from octavo.server.parsing.events import AnswerParser, Event, ToolCallArguments, ToolCallStart
from octavo.server.parsing.formats import AnswerFormat
from octavo.server.parsing.grammar import CallGrammar, mark_id, thinking_rule
from octavo.server.parsing.json_calls import HERMES, LLAMA3, JsonCallParser
from octavo.server.parsing.plain import PlainParser
from octavo.server.parsing.reasoning import ReasoningMarks, ReasoningParser
from octavo.server.parsing.tools import ToolUse
from octavo.server.parsing.xml_calls import XmlCallParser
from octavo.tokenizer.tokenizer import Tokenizer

_MARKS = {
    "hermes": (HERMES.begin, HERMES.end),
    "qwen3_coder": (HERMES.begin, HERMES.end),
    "llama3": (LLAMA3.begin,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """How to read the answers of a request."""

    make_parser: Callable[[bool], AnswerParser] = lambda _: PlainParser()
    """A new parser for one answer: eager if the argument is true, as streams want it."""
    structured: Structured | None = None
    """The form that the answer must have."""
    shown_token_ids: tuple[TokenId, ...] = ()
    """Special tokens that the parser must see, though clients do not."""
    use: ToolUse = field(default_factory=ToolUse)
    """The tools that the answer may call."""
    reasoning: ReasoningMarks | None = None
    """How to tell which tokens are reasoning, if there may be any and one can."""

    @property
    def reads_calls(self) -> bool:
        """Whether there may be tool calls."""
        return bool(self.use.allowed)


def plan_answer(
    form: AnswerFormat,
    tokenizer: Tokenizer,
    *,
    use: ToolUse | None = None,
    prompt: str = "",
    begun: str = "",
    wanted: Structured | None = None,
) -> AnswerPlan:
    """What to do with the answers to a prompt.

    Args:
        form: how the model writes.
        use: the tools, if there are any.
        prompt: as the model sees it: its end tells whether the answer begins inside reasoning.
        begun: what the prompt already has of the answer, which goes on with it.
        wanted: the form that the client asks for, which text must have and calls need not.

    Raises:
        RequestError: the wishes cannot be kept together, or not in the model's format.
    """
    use = use or ToolUse()
    thinks = form.reasoning != "none" and (wanted is None or wanted.kind == "json")
    is_open = thinks and _opens_reasoning(form, prompt, begun)
    is_closed = not is_open and (bool(begun) or prompt.rstrip().endswith(reasoning.END))
    structured = wanted
    if use.allowed or thinks:
        thinking = None
        if thinks and not is_closed:
            thinking = thinking_rule(tokenizer, is_open=is_open)
        structured = _form(form, tokenizer, use, wanted, thinking)
    marks = [*(_MARKS[form.calls] if use.allowed else ())]
    marks += [reasoning.BEGIN, reasoning.END] if thinks else []
    found = [mark_id(text, tokenizer) for text in marks]
    return AnswerPlan(
        make_parser=_maker(form, use, thinks=thinks, is_open=is_open),
        structured=structured,
        shown_token_ids=tuple(i for i in found if i in tokenizer.all_special_ids and i is not None),
        use=use,
        reasoning=_reasoning_marks(tokenizer, is_open=is_open) if thinks else None,
    )


def _reasoning_marks(tokenizer: Tokenizer, *, is_open: bool) -> ReasoningMarks | None:
    begin, end = mark_id(reasoning.BEGIN, tokenizer), mark_id(reasoning.END, tokenizer)
    return None if begin is None or end is None else ReasoningMarks(begin, end, is_open)


def _opens_reasoning(form: AnswerFormat, prompt: str, begun: str) -> bool:
    """Whether the answer begins inside reasoning."""
    if reasoning.BEGIN in begun or reasoning.END in begun:
        return begun.rfind(reasoning.BEGIN) > begun.rfind(reasoning.END)
    last_begin, last_end = prompt.rfind(reasoning.BEGIN), prompt.rfind(reasoning.END)
    if prompt.rstrip().endswith((reasoning.BEGIN, reasoning.END)):
        return last_begin > last_end
    return form.reasoning == "deepseek_r1"


def _form(
    form: AnswerFormat,
    tokenizer: Tokenizer,
    use: ToolUse,
    wanted: Structured | None,
    thinking: str | None,
) -> Structured | None:
    """What the engine must enforce."""
    if use.allowed:
        is_free = use.mode == "auto" and wanted is None
        strict = frozenset(tool.name for tool in use.allowed if tool.strict or not is_free)
        if is_free and not strict:
            return None
        rules = CallGrammar(form.calls, use.allowed, strict, use.is_parallel, tokenizer)
        with_names = _named(rules)
        if is_free:
            return with_names(rules.text_and_calls, thinking)
        if use.mode == "required" or wanted is None:
            return with_names(rules.calls_only, thinking)
        return with_names(lambda thought: rules.calls_or(_json_of(wanted), thought), thinking)
    if wanted is None or thinking is None:
        return wanted
    text = f"%llguidance {{}}\nstart: thought other\nthought: {thinking}\nother: {_json_of(wanted)}"
    return Structured.grammar(text)


def _named(rules: CallGrammar) -> Callable[[Callable[[str | None], str], str | None], Structured]:
    """Errors of a grammar are those of the tools."""

    def make(write: Callable[[str | None], str], thinking: str | None) -> Structured:
        try:
            return Structured.grammar(write(thinking))
        except InvalidParameter as error:
            error.param = "tools"
            raise

    return make


def _json_of(wanted: Structured) -> str:
    """A wanted form as a rule.

    Raises:
        InvalidParameter: it is none that may stand beside tools.
    """
    if wanted.kind != "json":
        raise UnsupportedParameter(
            f"structured_outputs asks for a {wanted.kind}, but there are tools, which the model "
            "may call instead: ask for JSON, or set tool_choice to 'none'",
            param="structured_outputs",
        )
    try:
        schema = json.loads(wanted.value)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(f"the JSON schema is no JSON: {error}", param="structured") from None
    if not isinstance(schema, dict):
        schema = {} if schema is True else {"not": {}}
    return json_rule(schema)


def _maker(
    form: AnswerFormat, use: ToolUse, *, thinks: bool, is_open: bool
) -> Callable[[bool], AnswerParser]:
    schemas = {tool.name: tool.schema for tool in use.allowed}

    def make(is_eager: bool) -> AnswerParser:
        answer: AnswerParser = PlainParser()
        if schemas:
            if form.calls == "qwen3_coder":
                answer = XmlCallParser(schemas, is_eager=is_eager)
            else:
                markup = LLAMA3 if form.calls == "llama3" else HERMES
                answer = JsonCallParser(markup, schemas, is_eager=is_eager)
            if not use.is_parallel:
                answer = FirstCall(answer)
        return ReasoningParser(answer, is_open=is_open) if thinks else answer

    return make


class FirstCall:
    """See `AnswerParser`: leaves out every call but the first of another parser."""

    def __init__(self, inner: AnswerParser) -> None:
        self._inner = inner

    def feed(self, text: str) -> list[Event]:
        """The other's events."""
        return self._without_others(self._inner.feed(text))

    def finish(self) -> list[Event]:
        """The other's rest."""
        return self._without_others(self._inner.finish())

    def _without_others(self, events: list[Event]) -> list[Event]:
        kinds = (ToolCallStart, ToolCallArguments)
        return [e for e in events if not (isinstance(e, kinds) and e.index > 0)]
