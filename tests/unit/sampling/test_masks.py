from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from llguidance import LLTokenizer
from support.vocabularies import byte_level_metadata

from octavo.core.params import SamplingParams, Structured
from octavo.grammar.store import GrammarStore
from octavo.grammar.vocabulary import make_vocabulary
from octavo.sampling.masks import MaskFiller
from octavo.sampling.state import RequestSampling
from octavo.tokenizer.gguf import tokenizer_from_gguf

VOCAB = 400


@pytest.fixture(scope="module")
def store() -> GrammarStore:
    def vocabulary() -> LLTokenizer:
        tokenizer = tokenizer_from_gguf(byte_level_metadata())
        return make_vocabulary(tokenizer, vocab_size=VOCAB, eos_token_ids=[2])

    return GrammarStore(vocabulary)


def state_of(store: GrammarStore, pattern: str | None) -> RequestSampling:
    structured = None if pattern is None else Structured.regex(pattern)
    return RequestSampling(
        SamplingParams(structured=structured),
        seed=0,
        eos_token_ids=frozenset({2}),
        prompt_token_ids=[1],
        output_token_ids=[],
        vocab_size=VOCAB,
        matcher=None if structured is None else store.matcher(structured, []),
    )


def allowed(state: RequestSampling) -> set[int]:
    assert state.mask is not None
    return set(np.flatnonzero(np.unpackbits(state.mask, bitorder="little")).tolist())


PATTERNS = ["a", "[a-c]", None, r"\d+", "(x|y)?"]


def test_each_row_has_the_mask_that_it_would_have_alone(store: GrammarStore) -> None:
    filler, alone = MaskFiller(2), []
    for pattern in PATTERNS:
        one = state_of(store, pattern)
        future = filler.start([one])
        assert (future is None) == (pattern is None)
        if future is not None:
            future.result(10)
            alone.append(allowed(one))
        else:
            assert one.mask is None
    states = [state_of(store, pattern) for pattern in PATTERNS]
    future = filler.start(states)
    assert future is not None
    future.result(10)
    assert [allowed(one) for one in states if one.matcher] == alone
    assert [len(one) for one in alone[:2]] == [1, 3] and 2 in alone[3]


def test_masks_follow_the_tokens(store: GrammarStore) -> None:
    filler, one = MaskFiller(1), state_of(store, "ab?")
    seen = []
    for _ in range(2):
        future = filler.start([one])
        assert future is not None
        future.result(10)
        seen.append(allowed(one))
        one.append(min(seen[-1] - {2}))
    assert len(seen[0]) == 1 and len(seen[1]) == 2 and 2 in seen[1]
    assert one.matcher is not None and one.matcher.is_complete


def test_nothing_is_started_for_rows_without_a_grammar(store: GrammarStore) -> None:
    before = threading.active_count()
    filler = MaskFiller(8)
    assert filler.start([state_of(store, None)]) is None and filler.start([]) is None
    assert threading.active_count() == before


@pytest.mark.parametrize("kind", [RuntimeError, BaseException])
def test_a_row_that_cannot_be_computed_fails_alone(
    store: GrammarStore, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    filler = MaskFiller(2)
    states = [state_of(store, pattern) for pattern in ("a", "b", "c")]
    bad = states[1].matcher
    original = MaskFiller._compute

    def compute(self: MaskFiller, matchers: Any, masks: Any) -> None:
        if bad in matchers:
            raise kind("a bug on purpose")
        original(self, matchers, masks)

    monkeypatch.setattr(MaskFiller, "_compute", compute)
    future = filler.start(states)
    assert future is not None and future.result(10) is None
    assert [len(allowed(one)) for one in states] == [1, 0, 1]
    assert bad is not None and "a bug on purpose" in (bad.error or "")
    assert states[0].matcher is not None and states[0].matcher.error is None
