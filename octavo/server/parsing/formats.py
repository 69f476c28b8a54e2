"""Which format a model writes its tool calls and its reasoning in, told by its chat template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from octavo.core.types import ReasoningParserOption, ToolParserOption
from octavo.server.parsing import reasoning

CallFormat = Literal["hermes", "llama3", "qwen3_coder"]
ReasoningFormat = Literal["none", "qwen3", "deepseek_r1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """How a model writes."""

    calls: CallFormat = "hermes"
    reasoning: ReasoningFormat = "none"
    """Where reasoning may be: nowhere, where the model or the prompt opens it, or at the beginning
    of every answer."""
    shows_tools: bool = False
    """Whether the template tells the model of tools."""


@lru_cache(maxsize=64)
def answer_format(
    source: str | None,
    calls: ToolParserOption = "auto",
    thinks: ReasoningParserOption = "auto",
) -> AnswerFormat:
    """The format of a model with this chat template, as far as the options do not say it."""
    source = source or ""
    return AnswerFormat(
        calls=_calls(source) if calls == "auto" else calls,
        reasoning=_reasoning(source) if thinks == "auto" else thinks,
        shows_tools=re.search(r"\btools\b", source) is not None,
    )


def _calls(source: str) -> CallFormat:
    if "<function=" in source and "<parameter=" in source:
        return "qwen3_coder"
    if "<tool_call>" in source:
        return "hermes"
    if "<|python_tag|>" in source or ("ipython" in source and '"parameters"' in source):
        return "llama3"
    return "hermes"


def _reasoning(source: str) -> ReasoningFormat:
    return "qwen3" if reasoning.END in source else "none"
