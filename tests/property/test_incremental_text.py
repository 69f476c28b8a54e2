"""However an output is cut into steps, its text is the same, and that of decoding it whole."""

from __future__ import annotations

import functools
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from support.vocabularies import byte_level_metadata, sentencepiece_metadata

from octavo.tokenizer.gguf import tokenizer_from_gguf
from octavo.tokenizer.incremental import incremental_decoder
from octavo.tokenizer.tokenizer import Tokenizer


@functools.cache
def _tokenizer(kind: str) -> Tokenizer:
    make = byte_level_metadata if kind == "byte_level" else sentencepiece_metadata
    return tokenizer_from_gguf(make())


KINDS = st.sampled_from(["byte_level", "sentencepiece"])
CUTS = st.lists(st.integers(0, 200), max_size=8)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def _in_steps(
    tokenizer: Tokenizer, prompt: list[int], ids: list[int], cuts: list[int], skip: bool
) -> str:
    decoder = incremental_decoder(tokenizer, prompt, skip)
    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    pieces = [decoder.step(ids[a:b]) for a, b in itertools.pairwise(bounds)]
    return "".join(pieces) + decoder.flush()


@settings(deadline=None, max_examples=300)
@given(KINDS, st.lists(st.integers(-1, 420), max_size=40), CUTS, st.booleans())
def test_random_ids(kind: str, ids: list[int], cuts: list[int], skip: bool) -> None:
    tokenizer = _tokenizer(kind)
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert _in_steps(tokenizer, [], ids, cuts, skip) == whole
    assert _in_steps(tokenizer, [], ids, list(range(len(ids))), skip) == whole


@settings(deadline=None, max_examples=200)
@given(KINDS, st.lists(st.integers(0, 420), max_size=12), st.data())
def test_random_ids_after_a_prompt(kind: str, ids: list[int], data: st.DataObject) -> None:
    tokenizer = _tokenizer(kind)
    cut = data.draw(st.integers(0, len(ids)))
    prompt, output = ids[:cut], ids[cut:]
    whole, before = tokenizer.decode(ids), tokenizer.decode(prompt)
    one_by_one = _in_steps(tokenizer, prompt, output, list(range(len(output))), True)
    assert _in_steps(tokenizer, prompt, output, [], True) == one_by_one
    if not before.endswith("\ufffd"):
        assert one_by_one == whole[len(before) :]


@settings(deadline=None, max_examples=300)
@given(KINDS, TEXT, CUTS)
def test_random_text(kind: str, text: str, cuts: list[int]) -> None:
    tokenizer = _tokenizer(kind)
    ids = tokenizer.encode(text, add_special_tokens=False)
    # SentencePiece spells U+2581 and a space alike.
    expected = text.replace("\u2581", " ") if kind == "sentencepiece" else text
    assert _in_steps(tokenizer, [], ids, cuts, True) == expected
