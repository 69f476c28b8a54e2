"""``/v1/completions``: text or token ids in, text out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from octavo.core.errors import InvalidParameter, UnsupportedParameter
from octavo.core.params import MAX_N
from octavo.core.types import TokenId
from octavo.front.outputs import CompletionDelta, CompletionOutput, RequestOutput
from octavo.server.body import JsonRoute
from octavo.server.errors import json_response
from octavo.server.openai.common import (
    Job,
    UsageCounter,
    check_options,
    new_id,
    prompt_logprobs_json,
    usage_of,
)
from octavo.server.openai.parallel_logprobs import Echo, Entry, LogprobLists
from octavo.server.openai.prompts import encode_prompts, off_loop
from octavo.server.openai.responses import CompletionChoice
from octavo.server.openai.sampling import sampling_params
from octavo.server.openai.schemas import CompletionRequest
from octavo.server.sse import DONE, event, or_disconnect, stream_response
from octavo.server.state import ServerState, state_of

router = APIRouter(route_class=JsonRoute)

KIND = "text_completion"
DEFAULT_MAX_TOKENS = 16


@router.post("/v1/completions", response_model=None)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Completes prompts."""
    size = len(await request.body())
    job = await off_loop(size, _job, body, state_of(request))
    if body.stream:
        return await stream_response(request, _events(job, body))
    outputs = await or_disconnect(request, job.complete())
    choices = [
        _whole_choice(job, body, (number, rank), output, completion)
        for number, output in enumerate(outputs)
        for rank, completion in enumerate(_best(body, output.outputs))
    ]
    return json_response(job.envelope(KIND, choices, usage_of(outputs)))


def _job(body: CompletionRequest, state: ServerState) -> Job:
    """Checks everything that can be checked before the engine hears of the request."""
    model = state.check_model(body.model)
    check_options(body, state)
    if body.best_of is not None:
        _check_best_of(body, body.best_of)
    prompts = encode_prompts(body, state)
    params = sampling_params(
        body.model_copy(update={"n": body.best_of}) if _selects(body) else body,
        state,
        prompts,
        max_tokens=("max_tokens", _max_tokens(body, state, prompts)),
        # The best are found by their log-probabilities.
        logprobs=("logprobs", 0 if body.logprobs is None and _selects(body) else body.logprobs),
        prompt_logprobs=_num_prompt_logprobs(body),
        least_tokens=0,
    )
    return Job(
        state=state, body=body, model=model, prompts=prompts, params=params, id=new_id("cmpl")
    )


def _num_choices(body: CompletionRequest) -> int:
    """Choices of each prompt."""
    return 1 if body.n is None else body.n


def _selects(body: CompletionRequest) -> bool:
    """Whether more completions are generated than the client gets."""
    return body.best_of is not None and body.best_of > _num_choices(body)


def _check_best_of(body: CompletionRequest, best_of: int) -> None:
    n = _num_choices(body)
    if n < 1:
        raise InvalidParameter(f"n is {n}: use 1 to {MAX_N}", param="n")
    if not n <= best_of <= MAX_N:
        raise InvalidParameter(
            f"best_of is {best_of}, and n is {n}: use {n} to {MAX_N} for best_of", param="best_of"
        )
    if body.stream and _selects(body):
        raise UnsupportedParameter(
            f"best_of is {best_of}, and n is {n}: which of them are the best is known only when "
            "all have ended, so they cannot be streamed; set stream to false",
            param="best_of",
        )


def _best(body: CompletionRequest, found: Sequence[CompletionOutput]) -> list[CompletionOutput]:
    """The ``n`` completions with the highest log-probability per token, best first; of equal ones
    those that were begun first."""
    if not _selects(body):
        return list(found)
    return sorted(found, key=_mean_logprob, reverse=True)[: _num_choices(body)]


def _mean_logprob(completion: CompletionOutput) -> float:
    logprobs = [entry.logprob for entry in completion.logprobs or ()]
    return sum(logprobs) / max(1, len(logprobs))


def _max_tokens(
    body: CompletionRequest, state: ServerState, prompts: Sequence[Sequence[TokenId]]
) -> int:
    """OpenAI's default, or what the context holds if that is less."""
    if body.max_tokens is not None:
        return body.max_tokens
    return min(DEFAULT_MAX_TOKENS, state.max_model_len - max(map(len, prompts)))


def _num_prompt_logprobs(body: CompletionRequest) -> int | None:
    """An echoed prompt is part of the text, so its tokens have log-probabilities too."""
    wanted = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((value for value in wanted if value is not None), default=None)


def _echo_text(job: Job, body: CompletionRequest, number: int) -> str:
    """The prompt's text if it is to come first."""
    if not body.echo:
        return ""
    prompt = body.prompt
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt[0], str):
        return prompt[number]
    return job.state.engine.tokenizer.decode(job.prompts[number], skip_special_tokens=False)


def _logprob_lists(job: Job, body: CompletionRequest, number: int, num_top: int) -> LogprobLists:
    """For a choice of this prompt."""
    tokenizer = job.state.engine.tokenizer
    hidden = tokenizer.all_special_ids if job.params.skip_special_tokens else frozenset()
    if not body.echo:
        return LogprobLists(num_top, hidden)
    text, special = _echo_text(job, body, number), body.add_special_tokens is not False
    spelled = [tokenizer.token_bytes(token) for token in job.prompts[number]]
    echo = Echo(spelled, text, lambda: tokenizer.offsets(text, special))
    return LogprobLists(num_top, hidden, echo)


def _whole_choice(
    job: Job,
    body: CompletionRequest,
    place: tuple[int, int],
    output: RequestOutput,
    completion: CompletionOutput,
) -> CompletionChoice:
    """``place``: the number of the prompt, and that of the completion among its choices."""
    number, rank = place
    logprobs = None
    if body.logprobs is not None:
        prompt = (output.prompt_logprobs or ()) if body.echo else ()
        lists = _logprob_lists(job, body, number, body.logprobs)
        logprobs = lists.extended(prompt, completion.logprobs or ())
    shown = body.return_token_ids
    return CompletionChoice(
        number * _num_choices(body) + rank,
        _echo_text(job, body, number) + completion.text,
        logprobs,
        completion.finish_reason,
        completion.stop_reason,
        completion.token_ids if shown else None,
        job.prompts[number] if shown else None,
        prompt_logprobs_json(output.prompt_logprobs, body.prompt_logprobs),
    )


async def _events(job: Job, body: CompletionRequest) -> AsyncGenerator[bytes, None]:
    """The stream of one request: pieces, then perhaps usage, then the end mark.

    Everything that came at the same time goes out in one piece.
    """
    counter = UsageCounter(job)
    chunks = _Chunks(job, body)
    async with aclosing(job.stream()) as stream:
        async for number, deltas in stream:
            events = []
            for delta in deltas:
                counter.add(number, delta)
                choice = chunks.choice(number, delta)
                events.append(event(job.envelope(KIND, [choice], counter.so_far)))
            yield b"".join(events)
    last = event(job.envelope(KIND, [], counter.total)) if counter.is_wanted else b""
    yield last + DONE


class _Chunks:
    """Makes the pieces of one request's stream; remembers what it has sent of each choice."""

    def __init__(self, job: Job, body: CompletionRequest) -> None:
        self._job = job
        self._body = body
        self._begun: set[int] = set()
        self._lists: dict[int, LogprobLists] = {}
        self._prompt_entries: dict[int, Sequence[Entry]] = {}

    def choice(self, number: int, delta: CompletionDelta) -> CompletionChoice:
        """The next piece of one completion of prompt ``number``."""
        index = number * self._job.params.n + delta.index
        choice = CompletionChoice(index, delta.text, None, delta.finish_reason, delta.stop_reason)
        body = self._body
        if body.return_token_ids:
            choice.token_ids = list(delta.token_ids)
        prompt: Sequence[Entry] = ()
        if delta.prompt_logprobs is not None:
            # They come with the first completion of a prompt, but are those of all.
            self._prompt_entries[number] = delta.prompt_logprobs
        if index not in self._begun:
            self._begun.add(index)
            if body.return_token_ids:
                choice.prompt_token_ids = self._job.prompts[number]
            if body.echo:
                choice.text = _echo_text(self._job, body, number) + delta.text
                prompt = self._prompt_entries.get(number, ())
        if body.logprobs is not None:
            lists = self._lists.get(index)
            if lists is None:
                lists = _logprob_lists(self._job, body, number, body.logprobs)
                self._lists[index] = lists
            choice.logprobs = lists.extended(prompt, delta.logprobs)
        return choice
