"""What a client hears of a step: never the same thing twice, whatever was computed again."""

from __future__ import annotations

from octavo.core.plan import RequestDelta, RowResult, ScheduledRequest, TokenLogprobs
from octavo.core.request import Request


def client_delta(request: Request, outcome: RowResult, error: str | None = None) -> RequestDelta:
    """A row's outcome as news; the first of a request also says how it began."""
    is_first = not request.is_announced and request.first_scheduled_s is not None
    request.is_announced |= is_first
    queue_s = (request.first_scheduled_s or 0.0) - request.arrival_s
    return RequestDelta(
        request_id=request.request_id,
        new_token_ids=outcome.token_ids,
        logprobs=outcome.logprobs,
        prompt_logprobs=outcome.prompt_logprobs,
        embedding=outcome.embedding,
        num_cached_tokens=request.num_cached_tokens if is_first else None,
        queue_s=queue_s if is_first else None,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        error=error,
    )


def unseen_prompt_logprobs(
    request: Request, row: ScheduledRequest, outcome: RowResult
) -> tuple[TokenLogprobs, ...]:
    """Those that were not reported before a preemption made the prompt start again."""
    seen = max(0, request.num_prompt_logprobs - row.start)
    unseen = outcome.prompt_logprobs[seen:]
    request.num_prompt_logprobs += len(unseen)
    return unseen
