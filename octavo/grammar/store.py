"""Compiled grammars, made in a thread of their own and kept for who asks again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from llguidance import LLMatcher, LLTokenizer

from octavo.core.errors import RequestError
from octavo.core.params import SamplingParams, Structured
from octavo.core.types import TokenId
from octavo.grammar.matcher import Matcher
from octavo.grammar.source import complaint, grammar_source, parser_limits

CAPACITY = 32
"""Compiled grammars to keep."""

STACK_BYTES = 512 << 20
"""Address space of the compiling thread's stack: the library calls itself for every level of a
grammar, and chains of references as long as `octavo.core.params.MAX_STRUCTURED_CHARS` admits
must not end the process. Memory is taken as it is touched."""


class GrammarStore:
    """Compiles and keeps grammars; safe to share between threads.

    ``make_vocabulary`` is called once, by the compiling thread, for the first grammar.
    """

    def __init__(self, make_vocabulary: Callable[[], LLTokenizer]) -> None:
        self._make_vocabulary = make_vocabulary
        self._vocabulary: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._made: OrderedDict[Structured, LLMatcher] = OrderedDict()
        self._wanted: dict[Structured, Future[LLMatcher]] = {}
        self._thread: threading.Thread | None = None
        """Compiles what is wanted; there is none when nothing is."""

    def prepare(self, params: SamplingParams) -> Future[LLMatcher] | None:
        """Begins to compile what these parameters need; None if there is nothing to wait for.

        The future raises `RequestError` if the grammar cannot be used.
        """
        if params.structured is None:
            return None
        with self._lock:
            return None if params.structured in self._made else self._ask(params.structured)

    def matcher(self, structured: Structured, output_token_ids: Sequence[TokenId]) -> Matcher:
        """A matcher of its own for one request, which has generated these tokens already.

        Raises:
            RequestError: the grammar cannot be used.
        """
        with self._lock:
            template = self._made.get(structured)
            if template is None:
                future = self._ask(structured)
            else:
                self._made.move_to_end(structured)
        # Whoever was prepared finds it made, unless many others came in between.
        made = future.result() if template is None else template
        assert self._vocabulary is not None  # noqa: S101 - the template was made with it
        matcher = Matcher(made.deep_copy(), self._vocabulary.vocab_size)
        matcher.consume(output_token_ids)
        return matcher

    def _ask(self, structured: Structured) -> Future[LLMatcher]:
        """The result that is to come; asked for once, however many wait for it."""
        future = self._wanted.get(structured)
        if future is None:
            future = self._wanted[structured] = Future()
            if self._thread is None:
                self._thread = start_deep_thread(self._run)
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                structured = next(iter(self._wanted), None)
                if structured is None:
                    self._thread = None
                    return
            made: LLMatcher | None = None
            fault: Exception | None = None
            try:
                made = self._compile(structured)
            except RequestError as error:
                fault = error
            except BaseException as error:  # a panic of the library is no Exception
                fault = complaint(structured, f"{type(error).__name__}: {error}")
            with self._lock:
                future = self._wanted.pop(structured)
                if made is not None:
                    self._made[structured] = made
                    if len(self._made) > CAPACITY:
                        self._made.popitem(last=False)
            if made is not None:
                future.set_result(made)
            else:
                future.set_exception(fault)

    def _compile(self, structured: Structured) -> LLMatcher:
        if self._vocabulary is None:
            self._vocabulary = self._make_vocabulary()
        return compiled(structured, self._vocabulary)


def compiled(structured: Structured, vocabulary: LLTokenizer) -> LLMatcher:
    """A matcher at the beginning of the output, with the first mask computed: much of what goes
    wrong does so there, and what it learns is shared by all copies.

    Raises:
        InvalidParameter: the grammar is wrong, admits nothing, or costs more than its limits.
    """
    matcher = LLMatcher(vocabulary, grammar_source(structured), log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise complaint(structured, matcher.get_error())
    return matcher


def start_deep_thread(target: Callable[[], None]) -> threading.Thread:
    """A running daemon thread with a stack of `STACK_BYTES`."""
    thread = threading.Thread(target=target, name="octavo-grammar", daemon=True)
    before = threading.stack_size(STACK_BYTES)
    try:
        thread.start()
    finally:
        threading.stack_size(before)
    return thread
