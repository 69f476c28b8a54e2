from __future__ import annotations

import numpy as np
import pytest

from octavo.core.errors import ExecutorError, InvalidParameter
from octavo.core.plan import RequestDelta
from octavo.front.embedding import (
    cosine,
    embedding_of,
    embedding_params,
    pairs,
    unit_vector,
)
from octavo.front.output import OutputProcessor
from octavo.tokenizer.tokenizer import Tokenizer


def raw(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def test_unit_vectors() -> None:
    assert unit_vector(raw(3, 0, -4)).tolist() == pytest.approx([0.6, 0, -0.8])
    assert unit_vector(raw(3e30, 0, -4e30)).tolist() == pytest.approx([0.6, 0, -0.8])
    assert unit_vector(raw(0, 0)).tolist() == [0, 0]
    assert unit_vector(raw(1, 2)).dtype == np.float32


def test_cosines_stay_within_their_range() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        a = unit_vector(rng.normal(size=7).astype(np.float32).tobytes())
        assert cosine(a, a) <= 1.0 and cosine(a, -a) >= -1.0
        assert cosine(a, a) == pytest.approx(1.0, abs=1e-6)
    assert cosine(unit_vector(raw(1, 0)), unit_vector(raw(0, 5))) == 0.0


def test_who_is_compared_with_whom() -> None:
    assert pairs(1, 3) == [(0, 0), (0, 1), (0, 2)]
    assert pairs(2, 2) == [(0, 0), (1, 1)]
    for first, second, param in ((0, 1, "text_1"), (1, 0, "text_2"), (2, 1, "text_1")):
        with pytest.raises(InvalidParameter) as caught:
            pairs(first, second)
        assert caught.value.param == param


def test_from_delta_to_embedding(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    for name in ("good", "bad"):
        processor.add(name, (5, 6), embedding_params("mean"), 0.0)
    ends = [
        RequestDelta(
            request_id="good", embedding=raw(0, 2), num_cached_tokens=0, finish_reason="length"
        ),
        RequestDelta(request_id="bad", finish_reason="error", error="out of luck"),
    ]
    processed = processor.process(ends, 1.0)
    assert processed.deltas["good"][0].embedding == raw(0, 2)
    found = embedding_of(processed.finished["good"])
    assert (found.vector.tolist(), found.prompt_token_ids) == ([0, 1], (5, 6))
    assert processed.finished["good"].outputs[0].text == ""
    with pytest.raises(ExecutorError, match="out of luck"):
        embedding_of(processed.finished["bad"])


def test_an_embedding_comes_before_the_end_of_a_longer_output(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    params = embedding_params("mean")
    processor.add("r", (5, 6), params, 0.0)
    processed = processor.process([RequestDelta(request_id="r", embedding=raw(1))], 1.0)
    assert [delta.embedding for delta in processed.deltas["r"]] == [raw(1)]
    assert processed.finished == {}
