"""``/v1/completions``: text or token ids in, text out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TypeGuard

from fastapi import APIRouter, Request, Response

from octavo.core.errors import InvalidParameter, UnsupportedParameter
from octavo.core.types import TokenId
from octavo.front.outputs import CompletionDelta, CompletionOutput, DecodedLogprob, RequestOutput
from octavo.server.errors import json_response
from octavo.server.openai.common import (
    Job,
    UsageCounter,
    new_id,
    prompt_logprobs_json,
    usage_of,
)
from octavo.server.openai.responses import CompletionChoice, CompletionLogprobs
from octavo.server.openai.sampling import sampling_params
from octavo.server.openai.schemas import CompletionRequest
from octavo.server.sse import DONE, event, or_disconnect, stream_response
from octavo.server.state import ServerState, state_of

router = APIRouter()

KIND = "text_completion"
DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 1024


@router.post("/v1/completions", response_model=None)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Completes prompts."""
    job = make_job(body, state_of(request))
    if body.stream:
        return await stream_response(request, _events(job, body))
    outputs = await or_disconnect(request, job.complete())
    choices = [
        _whole_choice(job, body, number * job.params.n + completion.index, output, completion)
        for number, output in enumerate(outputs)
        for completion in output.outputs
    ]
    return json_response(job.envelope(KIND, choices, usage_of(outputs)))


def make_job(body: CompletionRequest, state: ServerState) -> Job:
    """Checks everything that can be checked before the engine hears of the request."""
    model = state.check_model(body.model)
    n = 1 if body.n is None else body.n
    if body.best_of is not None and body.best_of != n:
        raise UnsupportedParameter(
            f"best_of is {body.best_of}, but only a value equal to n ({n}) is supported",
            param="best_of",
        )
    if body.max_tokens == 0:
        raise UnsupportedParameter("max_tokens is 0: use 1 or more", param="max_tokens")
    prompts = encode_prompts(body, state)
    for prompt in prompts:
        state.check_prompt(prompt, "prompt")
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        # The prompt is part of the text, so its tokens have log-probabilities too.
        body = body.model_copy(update={"prompt_logprobs": body.logprobs})
    params = sampling_params(
        body,
        state,
        prompt_tokens=max(map(len, prompts)),
        max_tokens=_default_max_tokens(state, prompts)
        if body.max_tokens is None
        else body.max_tokens,
        logprobs=body.logprobs,
    )
    return Job(
        state=state, body=body, model=model, prompts=prompts, params=params, id=new_id("cmpl")
    )


def _default_max_tokens(state: ServerState, prompts: Sequence[Sequence[TokenId]]) -> int:
    """OpenAI's default, or what the context holds if that is less."""
    return min(DEFAULT_MAX_TOKENS, state.max_model_len - max(map(len, prompts)))


def encode_prompts(body: CompletionRequest, state: ServerState) -> list[list[TokenId]]:
    """The prompt field, in any of its four forms, as token ids of each prompt."""
    prompt, tokenizer = body.prompt, state.engine.tokenizer
    if isinstance(prompt, str):
        return [tokenizer.encode(prompt, body.add_special_tokens)]
    if not prompt or (len(prompt) > MAX_PROMPTS and not isinstance(prompt[0], int)):
        raise InvalidParameter(
            f"prompt is a list of {len(prompt)} prompts: send 1 to {MAX_PROMPTS}", param="prompt"
        )
    if is_token_ids(prompt):
        return [prompt]
    if is_texts(prompt):
        return tokenizer.encode_batch(prompt, body.add_special_tokens)
    return [list(ids) for ids in prompt if isinstance(ids, list)]


def is_token_ids(prompt: Sequence[object]) -> TypeGuard[list[TokenId]]:
    """Whether a list is one prompt, given as token ids."""
    return isinstance(prompt[0], int)


def is_texts(prompt: Sequence[object]) -> TypeGuard[list[str]]:
    """Whether a list holds prompts given as text."""
    return isinstance(prompt[0], str)


def _echo_text(job: Job, body: CompletionRequest, number: int) -> str:
    """The prompt's text if it is to come first."""
    if not body.echo:
        return ""
    if isinstance(body.prompt, str):
        return body.prompt
    given = body.prompt[number] if isinstance(body.prompt[0], str | list) else body.prompt
    if isinstance(given, str):
        return given
    return job.state.engine.tokenizer.decode(job.prompts[number], skip_special_tokens=False)


def _whole_choice(
    job: Job,
    body: CompletionRequest,
    index: int,
    output: RequestOutput,
    completion: CompletionOutput,
) -> CompletionChoice:
    echo = _echo_text(job, body, index // job.params.n)
    entries: list[DecodedLogprob | None] = list(completion.logprobs or ())
    if body.echo and body.logprobs is not None:
        entries = [*(output.prompt_logprobs or ()), *entries]
    first = _first_prompt_token(job, index // job.params.n) if body.echo else ""
    shown = body.return_token_ids
    wants_prompt = job.params.prompt_logprobs is not None and not body.echo
    return CompletionChoice(
        index,
        echo + completion.text,
        logprobs_json(entries, 0, first) if body.logprobs is not None else None,
        completion.finish_reason,
        completion.stop_reason,
        completion.token_ids if shown else None,
        list(output.prompt_token_ids) if shown else None,
        prompt_logprobs_json(output.prompt_logprobs) if wants_prompt else None,
    )


def _first_prompt_token(job: Job, number: int) -> str:
    tokenizer = job.state.engine.tokenizer
    return tokenizer.token_bytes(job.prompts[number][0]).decode("utf-8", "replace")


async def _events(job: Job, body: CompletionRequest) -> AsyncIterator[bytes]:
    """The stream of one request: pieces, then perhaps usage, then the end mark."""
    counter = UsageCounter(job.prompts)
    options = body.stream_options
    every = bool(options and options.continuous_usage_stats)
    offsets: dict[int, int] = {}
    async for number, deltas in job.stream():
        counter.add(number, deltas)
        for delta in deltas:
            index = number * job.params.n + delta.index
            is_first = index not in offsets
            choice = _chunk(job, body, index, delta, offsets)
            if body.return_token_ids and is_first:
                choice.prompt_token_ids = job.prompts[number]
            yield event(job.envelope(KIND, [choice], counter.usage if every else None))
    if options and options.include_usage:
        yield event(job.envelope(KIND, [], counter.usage))
    yield DONE


def _chunk(
    job: Job,
    body: CompletionRequest,
    index: int,
    delta: CompletionDelta,
    offsets: dict[int, int],
) -> CompletionChoice:
    text, entries = delta.text, list[DecodedLogprob | None](delta.logprobs)
    is_first, first = index not in offsets, ""
    offset = offsets.setdefault(index, 0)
    if is_first and body.echo:
        number = index // job.params.n
        text = _echo_text(job, body, number) + text
        first = _first_prompt_token(job, number)
        entries = [*(delta.prompt_logprobs or ()), *entries]
    logprobs = logprobs_json(entries, offset, first) if body.logprobs is not None else None
    offsets[index] += len(text)
    return CompletionChoice(
        index,
        text,
        logprobs,
        delta.finish_reason,
        delta.stop_reason,
        list(delta.token_ids) if body.return_token_ids else None,
    )


def logprobs_json(
    entries: Sequence[DecodedLogprob | None], offset: int, first: str
) -> CompletionLogprobs:
    """The older shape. ``None`` stands for the first token of a prompt, whose text is ``first``."""
    out = CompletionLogprobs([], [], [], [])
    for entry in entries:
        text = first if entry is None else entry.text
        out.tokens.append(text)
        out.token_logprobs.append(None if entry is None else entry.logprob)
        out.top_logprobs.append(None if entry is None else _top(entry))
        out.text_offset.append(offset)
        offset += len(text)
    return out


def _top(entry: DecodedLogprob) -> dict[str, float]:
    """The alternatives by text, the token itself among them."""
    return {item.text: item.logprob for item in (*entry.top, entry)}
