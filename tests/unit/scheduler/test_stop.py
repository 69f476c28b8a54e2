from __future__ import annotations

import pytest

from octavo.core.params import SamplingParams
from octavo.core.request import Request
from octavo.scheduler.stop import Stop, check_stop

EOS = 9


def stop(output, *, prompt=3, max_model_len=100, is_complete=False, **params):
    request = Request(
        request_id="a",
        prompt_token_ids=(1,) * prompt,
        params=SamplingParams(**{"max_tokens": 50, **params}),
        seed=0,
        eos_token_ids=frozenset({EOS}),
    )
    request.output_token_ids = output
    return check_stop(request, max_model_len, is_complete=is_complete)


@pytest.mark.parametrize(
    ("output", "options", "expected"),
    [
        ([1], {}, None),
        ([1, EOS], {}, Stop("stop")),
        ([1, EOS], {"ignore_eos": True}, None),
        ([1, 5], {"stop_token_ids": [5]}, Stop("stop", 5)),
        ([5, 1], {"stop_token_ids": [5]}, None),
        ([1, EOS], {"stop_token_ids": [EOS]}, Stop("stop")),
        ([1, EOS], {"stop_token_ids": [EOS], "ignore_eos": True}, Stop("stop", EOS)),
        ([1, EOS], {"min_tokens": 3}, None),
        ([1, EOS], {"min_tokens": 2}, Stop("stop")),
        ([1, 2], {"max_tokens": 2}, Stop("length")),
        ([1, EOS], {"max_tokens": 2}, Stop("stop")),
        ([1, 2], {"max_model_len": 5}, Stop("length")),
        ([1, 2], {"max_model_len": 6}, None),
        ([1, 2], {"max_tokens": None, "max_model_len": 5}, Stop("length")),
    ],
)
def test_stop(output, options, expected):
    assert stop(output, **options) == expected


@pytest.mark.parametrize(
    "options", [{}, {"max_tokens": 2}, {"min_tokens": 9}, {"max_model_len": 5}]
)
def test_what_nothing_can_follow_has_stopped_and_keeps_its_token(options):
    assert stop([1, 2], is_complete=True, **options) == Stop("stop", keeps_token=True)


def test_a_stop_token_that_completes_the_output_is_still_one():
    assert stop([1, EOS], is_complete=True) == Stop("stop")
    assert stop([1, 5], is_complete=True, stop_token_ids=[5]) == Stop("stop", 5)
