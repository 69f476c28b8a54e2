"""Grammars tried in a process of their own, and what becomes of those that kill it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.aio import aio

from octavo.core.errors import EngineDead, InvalidParameter, UnsupportedParameter
from octavo.core.params import Structured
from octavo.front.grammar_guard import GrammarGuard

AB = Structured.regex("ab")
CHILD = """
import sys
from octavo.core.errors import UnsupportedParameter
from octavo.grammar import trial
from octavo.grammar.vocabulary import make_vocabulary
sys.path.insert(0, {tests!r})
from support.vocabularies import byte_level_metadata
from octavo.tokenizer.gguf import tokenizer_from_gguf

assert sys.stdin.buffer.readline() == b"config\\n"
trial.TIME_LIMIT_S = {seconds}

def vocabulary():
    {first}
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    return make_vocabulary(tokenizer, vocab_size=400, eos_token_ids=[2])

trial.serve(vocabulary, sys.stdin.buffer, sys.stdout.buffer)
"""

Make = Callable[..., GrammarGuard]


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    guards: list[GrammarGuard] = []
    tests = str(request.config.rootpath / "tests")

    def guard(first: str = "pass", seconds: int = 30) -> GrammarGuard:
        program = CHILD.format(tests=tests, first=first, seconds=seconds)
        guards.append(GrammarGuard([sys.executable, "-c", program], "config"))
        return guards[-1]

    yield guard
    for one in guards:
        one.close()
        one.close()


async def refusal(guard: GrammarGuard, structured: Structured) -> str:
    with pytest.raises(InvalidParameter) as caught:
        await guard.check(structured)
    assert caught.value.param == "structured"
    return str(caught.value)


@aio
async def test_verdicts(make: Make) -> None:
    guard = make()
    await guard.check(AB)
    assert "unclosed" in await refusal(guard, Structured.regex("("))
    child = guard._child
    assert child is not None
    # What lies further on than the first token shows as well.
    assert "items" in await refusal(
        guard, Structured.grammar('start: "x" a\na: b{1000}\nb: c{1000}\nc: "y"{1000}')
    )
    await asyncio.gather(*(guard.check(Structured.regex(f"a{{{n}}}")) for n in range(1, 20)))
    assert guard._child is child, "one process answers all"


DEEP = "".join(f'R{i}: R{i + 1} "b"\n' for i in range(9000))
DEADLY = {
    signal.SIGABRT: Structured.regex("x(a{1000}){1000}"),  # out of memory
    signal.SIGALRM: Structured.grammar(f'start: R0\n{DEEP}R9000: "a"'),  # out of time
}


@pytest.mark.parametrize("cause", DEADLY)
@aio
async def test_a_grammar_that_kills_its_judge_is_refused(make: Make, cause: signal.Signals) -> None:
    guard = make(seconds=1 if cause == signal.SIGALRM else 30)
    await guard.check(AB)
    first = guard._child
    assert first is not None
    began = time.monotonic()
    said = await refusal(guard, DEADLY[cause])
    assert "make it simpler" in said
    assert time.monotonic() - began < 20
    assert first.returncode == -cause, "it is dead, and no zombie"
    assert await refusal(guard, DEADLY[cause]) == said, "not tried again"
    assert guard._child is None
    await guard.check(Structured.regex("cd"))


@aio
async def test_a_model_without_grammars(make: Make) -> None:
    guard = make('raise UnsupportedParameter("not with this tokenizer")')
    with pytest.raises(UnsupportedParameter, match="not with this tokenizer"):
        await guard.check(AB)


@aio
async def test_nobody_is_left_behind(make: Make) -> None:
    guard = make()
    await guard.check(AB)
    child: Any = guard._child
    guard.close()
    assert child.returncode is not None
    with pytest.raises((EngineDead, RuntimeError)):
        await guard.check(Structured.regex("other"))


@aio
async def test_the_child_leaves_with_its_parent(make: Make) -> None:
    guard = make()
    await guard.check(AB)
    child: Any = guard._child
    child.stdin.close()
    assert child.wait(10) == 0


@aio
async def test_it_may_be_started_before_the_first_grammar(make: Make) -> None:
    guard = make()
    guard.start()
    await asyncio.get_running_loop().run_in_executor(guard._pool, lambda: None)
    child = guard._child
    assert child is not None and child.poll() is None
    await guard.check(AB)
    assert guard._child is child
    guard.close()
    assert child.poll() is not None
