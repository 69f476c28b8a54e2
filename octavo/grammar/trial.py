"""The process in which grammars are tried: compiled, and followed for a few tokens.

One line of JSON in, one out. It does not survive a grammar that takes too long or too much memory:
an alarm that nothing can put off ends it, or the library does when it gets no memory. Whoever waits
for its answer sees the end of the file instead.
"""

from __future__ import annotations

import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import BinaryIO

import msgspec
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from octavo.core.errors import EngineError, InvalidParameter
from octavo.core.params import Structured
from octavo.grammar.source import complaint
from octavo.grammar.store import compiled, start_deep_thread

TIME_LIMIT_S = 10
"""To compile a grammar and follow it, by the clock: others may be busy on the same cores."""

STEP_LIMIT_S = 0.25
"""Of a core's time, for the tokens that may come next: all rows of a step wait for the slowest."""

MEMORY_LIMIT_BYTES = 128 << 20
"""For one grammar and all that it takes to compile it."""

NUM_TOKENS = 32
"""How far to follow a grammar."""

_PAGE_BYTES = resource.getpagesize()


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a grammar can be used."""

    error: str | None = None
    is_grammar: bool = True
    """Whether the error is the grammar's; else no grammar can be used with this model."""


def serve(make_vocabulary: Callable[[], LLTokenizer], source: BinaryIO, target: BinaryIO) -> None:
    """Answers until the source ends or a grammar ends the process."""
    thread = start_deep_thread(lambda: _serve(make_vocabulary, source, target))
    # A signal's default action ends the process, whatever this thread waits for.
    thread.join()


def _serve(make_vocabulary: Callable[[], LLTokenizer], source: BinaryIO, target: BinaryIO) -> None:
    vocabulary, failure = None, ""
    try:
        vocabulary = make_vocabulary()
        compiled(Structured.json(), vocabulary)  # from here on memory grows by grammars alone
    except EngineError as error:
        failure = str(error)
    _limit_memory()
    for line in iter(source.readline, b""):
        structured = msgspec.json.decode(line, type=Structured)
        if vocabulary is None:
            verdict = Verdict(failure, is_grammar=False)
        else:
            signal.alarm(TIME_LIMIT_S)
            verdict = judge(structured, vocabulary)
            signal.alarm(0)
        target.write(msgspec.json.encode(verdict) + b"\n")
        target.flush()


def judge(structured: Structured, vocabulary: LLTokenizer) -> Verdict:
    """Compiles a grammar and follows it along tokens taken at random."""
    try:
        _follow(structured, compiled(structured, vocabulary), vocabulary)
    except InvalidParameter as error:
        return Verdict(str(error))
    except BaseException as error:  # a panic of the library is no Exception
        return Verdict(str(complaint(structured, f"{type(error).__name__}: {error}")))
    return Verdict()


def _follow(structured: Structured, matcher: LLMatcher, vocabulary: LLTokenizer) -> None:
    """Raises `InvalidParameter` if the grammar fails on its way, or is slow."""
    chance = random.Random(0)
    ends = set(vocabulary.eos_tokens)
    for _ in range(NUM_TOKENS):
        began = time.thread_time()
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        seconds = time.thread_time() - began
        if matcher.is_error():
            raise complaint(structured, matcher.get_error())
        if seconds > STEP_LIMIT_S:
            raise complaint(
                structured,
                f"it takes {seconds:.1f} s to find the tokens that may come next, and may take "
                f"{STEP_LIMIT_S}: make it simpler",
            )
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
        allowed = [token for token in allowed if token not in ends]
        if not allowed:
            return
        if not matcher.consume_token(chance.choice(allowed)):
            raise complaint(structured, matcher.get_error())


def _limit_memory() -> None:
    """No more address space than is taken now and one grammar may take. Linux only: elsewhere time
    is the only limit."""
    if sys.platform != "linux":
        return
    with open("/proc/self/statm", encoding="ascii") as statm:
        taken = int(statm.read().split()[0]) * _PAGE_BYTES
    limit = taken + MEMORY_LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
