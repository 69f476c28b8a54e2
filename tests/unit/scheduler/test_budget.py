from __future__ import annotations

import pytest

from octavo.core.config import SchedulerConfig
from octavo.scheduler.budget import StepBudget


def budget(**options):
    return StepBudget(
        SchedulerConfig(**{"max_num_batched_tokens": 32, "max_num_seqs": 4, **options})
    )


@pytest.mark.parametrize(
    ("threshold", "remaining", "expected"), [(10, 10, False), (10, 11, True), (0, 10_000, False)]
)
def test_long(threshold, remaining, expected):
    assert budget(long_prefill_token_threshold=threshold).is_long(remaining) == expected


def test_grants_end_with_the_step():
    b = budget()
    assert b.grant(5) == 5 and b.grant(100) == 32
    b.num_tokens -= 30
    assert b.grant(5) == 2
    b.num_tokens -= 2
    assert b.grant(5) == 0


def test_a_long_prompt_leaves_half_while_short_ones_wait():
    b = budget(long_prefill_token_threshold=10)
    assert b.grant(100) == 32
    b.short_prompts_wait = True
    assert b.grant(100) == 16 and b.grant(10) == 10


def test_half_of_one_token_is_one():
    b = budget(max_num_batched_tokens=1, max_num_seqs=1, long_prefill_token_threshold=1)
    b.short_prompts_wait = True
    assert b.grant(5) == 1


def test_the_number_of_long_prompts_is_limited():
    b = budget(max_long_partial_prefills=2)
    b.num_long_prompts = 1
    assert b.admits_long_prompt
    b.num_long_prompts = 2
    assert not b.admits_long_prompt
