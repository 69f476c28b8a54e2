"""Messages with something in every field, for tests of links."""

from __future__ import annotations

from octavo.core.params import SamplingParams
from octavo.core.plan import RequestDelta, TokenLogprobs
from octavo.metrics.stats import CacheStats, StepStats
from octavo.transport.messages import StepDone, Submit


def make_submit(name: str = "a") -> Submit:
    return Submit(
        request_id=name,
        prompt_token_ids=(1, 2, 3),
        params=SamplingParams(
            n=2, stop=("é", "世"), logit_bias={7: -1.5}, allowed_token_ids=(1, 2), logprobs=0
        ),
        seed=-(2**63),
        eos_token_ids=frozenset({2, 5}),
        priority=-3,
        cache_salt="tenant",
    )


def make_step(step_id: int) -> StepDone:
    cache = CacheStats(
        num_total_blocks=8, num_free_blocks=5, num_cached_blocks=2, num_used_blocks=1
    )
    logprobs = TokenLogprobs(4, -0.25, 1, ((4, -0.25), (5, -1.5)))
    deltas = (
        RequestDelta(request_id="a", new_token_ids=(4,), logprobs=(logprobs,), num_cached_tokens=0),
        RequestDelta(request_id="a#1", finish_reason="stop", stop_reason="é"),
        RequestDelta(request_id="b", finish_reason="stop", stop_reason=17),
    )
    return StepDone(deltas, StepStats(step_id=step_id, num_running=2, num_waiting=0, cache=cache))
