from __future__ import annotations

import pytest

from octavo.core.errors import ContextTooLong, InvalidParameter
from octavo.scheduler.door import check_fits


@pytest.mark.parametrize(
    ("prompt", "context", "capacity"), [(1, 2, 16), (99, 100, 160), (15, 100, 16)]
)
def test_what_fits_passes(prompt, context, capacity):
    check_fits(prompt, max_model_len=context, capacity=capacity)


def test_what_generates_nothing_needs_no_room_for_it():
    check_fits(100, max_model_len=100, capacity=160, generates=False)
    check_fits(16, max_model_len=100, capacity=16, generates=False)
    with pytest.raises(ContextTooLong, match=r"has 101 tokens, but .* to 100 tokens or less"):
        check_fits(101, max_model_len=100, capacity=160, generates=False)
    with pytest.raises(ContextTooLong, match="KV cache holds 16"):
        check_fits(17, max_model_len=100, capacity=16, generates=False)


@pytest.mark.parametrize(
    ("prompt", "context", "capacity", "kind", "text"),
    [
        (0, 100, 16, InvalidParameter, "the prompt is empty"),
        (100, 100, 1600, ContextTooLong, "has 100 tokens.*context is 100.*to 99 tokens or less"),
        (101, 100, 1600, ContextTooLong, "has 101 tokens"),
        (16, 100, 16, ContextTooLong, "has 16 tokens.*KV cache holds 16"),
    ],
)
def test_what_never_fits_is_refused(prompt, context, capacity, kind, text):
    with pytest.raises(kind, match=text) as caught:
        check_fits(prompt, max_model_len=context, capacity=capacity)
    assert caught.value.param == "prompt"
