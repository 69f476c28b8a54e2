from __future__ import annotations

from octavo.core.params import SamplingParams
from octavo.core.plan import RowResult, ScheduledRequest, TokenLogprobs
from octavo.core.request import Request
from octavo.scheduler.deltas import client_delta, unseen_prompt_logprobs


def request():
    return Request(
        request_id="a", prompt_token_ids=(1,) * 9, params=SamplingParams(), seed=0, arrival_s=2.0
    )


def test_the_beginning_is_told_once():
    r = request()
    r.first_scheduled_s, r.num_cached_tokens = 5.0, 4
    first = client_delta(r, RowResult("a", (7,)))
    assert (first.num_cached_tokens, first.queue_s, first.new_token_ids) == (4, 3.0, (7,))
    second = client_delta(r, RowResult("a", (8,)))
    assert (second.num_cached_tokens, second.queue_s, second.new_token_ids) == (None, None, (8,))


def test_who_never_ran_has_no_beginning():
    r = request()
    r.finish_reason = "abort"
    delta = client_delta(r, RowResult("a"), "why")
    assert (delta.num_cached_tokens, delta.queue_s) == (None, None)
    assert (delta.finish_reason, delta.error) == ("abort", "why")


def test_prompt_logprobs_computed_again_are_not_told_again():
    r, told = request(), []
    # Two chunks, a preemption, and then the prompt in other chunks.
    for start, count in ((0, 3), (3, 2), (0, 4), (4, 5)):
        places = range(start + 1, min(start + count + 1, 9))
        scores = tuple(TokenLogprobs(1, -float(place), 1) for place in places)
        row = ScheduledRequest("a", start, count)
        told += unseen_prompt_logprobs(r, row, RowResult("a", prompt_logprobs=scores))
    assert [-score.logprob for score in told] == list(range(1, 9))
