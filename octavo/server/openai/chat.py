"""``/v1/chat/completions``: a conversation in, the assistant's next message out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from octavo.core.errors import InvalidParameter
from octavo.front.outputs import CompletionDelta, CompletionOutput, DecodedLogprob
from octavo.server.body import JsonRoute
from octavo.server.errors import json_response
from octavo.server.openai.chat_answers import AnswerStream, ended, message_of, read_answer
from octavo.server.openai.common import (
    Job,
    UsageCounter,
    check_options,
    new_id,
    prompt_logprobs_json,
    usage_of,
)
from octavo.server.openai.conversation import last_text, template_of, tool_use
from octavo.server.openai.prompts import chat_text, chat_tokens, off_loop
from octavo.server.openai.responses import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    TokenLogprob,
    TopLogprob,
    finite,
)
from octavo.server.openai.sampling import sampling_params
from octavo.server.openai.schemas import ChatCompletionRequest
from octavo.server.openai.structured import wanted_form
from octavo.server.parsing.plan import plan_answer
from octavo.server.sse import DONE, event, or_disconnect, stream_response
from octavo.server.state import ServerState, state_of

router = APIRouter(route_class=JsonRoute)

KIND = "chat.completion"
CHUNK = "chat.completion.chunk"


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
    """Answers a conversation."""
    size = len(await request.body())
    job = await off_loop(size, chat_job, body, state_of(request), new_id("chatcmpl"))
    if body.stream:
        return await stream_response(request, _events(job, body))
    outputs = await or_disconnect(request, job.complete())
    output = outputs[0]
    answer = job.envelope(
        KIND,
        [_whole_choice(job, body, completion) for completion in output.outputs],
        usage_of(outputs, job.plan.reasoning),
    )
    answer.prompt_logprobs = prompt_logprobs_json(output.prompt_logprobs, body.prompt_logprobs)
    if body.return_token_ids:
        answer.prompt_token_ids = job.prompts[0]
    return json_response(answer)


def chat_job(body: ChatCompletionRequest, state: ServerState, name: str) -> Job:
    """Checks everything that can be checked before the engine hears of the request.

    Args:
        name: the id of the answer.

    Raises:
        RequestError: names the parameter.
        EngineError: the engine is gone, or the line is too long.
    """
    model = state.check_model(body.model)
    check_options(body, state)
    max_tokens = _max_tokens(body)
    use = tool_use(body)
    text = chat_text(body.messages, body, state, shows_tools=use.mode != "none")
    prompts = [chat_tokens(text, body, state)]
    plan = plan_answer(
        state.answer_format(template_of(body, state)),
        state.engine.tokenizer,
        use=use,
        prompt=text,
        begun=last_text(body.messages) if body.continue_final_message else "",
        wanted=wanted_form(body),
    )
    params = sampling_params(
        body,
        state,
        prompts,
        max_tokens=max_tokens,
        logprobs=("top_logprobs", _num_logprobs(body)),
        prompt_logprobs=body.prompt_logprobs,
        plan=plan,
    )
    return Job(
        state=state, body=body, model=model, prompts=prompts, params=params, id=name, plan=plan
    )


def _max_tokens(body: ChatCompletionRequest) -> tuple[str, int | None]:
    """The limit of the output, and which of its two names was used."""
    old, new = body.max_tokens, body.max_completion_tokens
    if new is None:
        return "max_tokens", old
    if old not in (None, new):
        raise InvalidParameter(
            f"max_tokens is {old} and max_completion_tokens is {new}: they mean the same; send one",
            param="max_completion_tokens",
        )
    return "max_completion_tokens", new


def _num_logprobs(body: ChatCompletionRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidParameter(
            "top_logprobs is set, but logprobs is not true", param="top_logprobs"
        )
    return (body.top_logprobs or 0) if body.logprobs else None


def _whole_choice(
    job: Job, body: ChatCompletionRequest, completion: CompletionOutput
) -> ChatChoice:
    answer = read_answer(job.plan, completion.text)
    return ChatChoice(
        completion.index,
        message_of(answer, shows_reasoning=body.include_reasoning is not False),
        logprobs_json(completion.logprobs or ()) if body.logprobs else None,
        ended(completion.finish_reason, has_calls=bool(answer.tool_calls)),
        completion.stop_reason,
        completion.token_ids if body.return_token_ids else None,
    )


async def _events(job: Job, body: ChatCompletionRequest) -> AsyncGenerator[bytes, None]:
    """The stream of one request: roles, pieces, then perhaps usage, then the end mark.

    Everything that came at the same time goes out in one piece.
    """
    counter = UsageCounter(job)
    shows_reasoning = body.include_reasoning is not False
    answers = [AnswerStream(job.plan, shows_reasoning=shows_reasoning) for _ in range(job.params.n)]
    begun = False
    async with aclosing(job.stream()) as stream:
        async for number, deltas in stream:
            events = []
            if not begun:
                begun = True
                events += [_opening(job, body, index, counter) for index in range(job.params.n)]
            for delta in deltas:
                counter.add(number, delta)
                for choice in _chunks(body, delta, answers[delta.index]):
                    events.append(event(job.envelope(CHUNK, [choice], counter.so_far)))
            yield b"".join(events)
    last = event(job.envelope(CHUNK, [], counter.total)) if counter.is_wanted else b""
    yield last + DONE


def _opening(job: Job, body: ChatCompletionRequest, index: int, counter: UsageCounter) -> bytes:
    content = None if job.plan.reads_calls else ""
    choice = ChatChunkChoice(index, ChatDelta("assistant", content), None, None)
    chunk = job.envelope(CHUNK, [choice], counter.so_far)
    if body.return_token_ids:
        chunk.prompt_token_ids = job.prompts[0]
    return event(chunk)


def _chunks(
    body: ChatCompletionRequest, delta: CompletionDelta, answer: AnswerStream
) -> list[ChatChunkChoice]:
    """A piece of an answer: one chunk for each kind of thing in it, tokens with the first of them
    and the end with the last."""
    pieces = answer.deltas(delta.text, delta.finish_reason) or [ChatDelta(content="")]
    chunks = [ChatChunkChoice(delta.index, piece, None, None) for piece in pieces]
    if body.logprobs:
        chunks[0].logprobs = logprobs_json(delta.logprobs)
    if body.return_token_ids:
        chunks[0].token_ids = list(delta.token_ids)
    chunks[-1].finish_reason = answer.ended(delta.finish_reason)
    chunks[-1].stop_reason = delta.stop_reason
    return chunks


def logprobs_json(entries: Sequence[DecodedLogprob]) -> ChatLogprobs:
    """The newer shape, with the exact bytes of each token."""
    return ChatLogprobs(
        [
            TokenLogprob(
                entry.text,
                finite(entry.logprob),
                list(entry.raw),
                [TopLogprob(top.text, finite(top.logprob), list(top.raw)) for top in entry.top],
            )
            for entry in entries
        ]
    )
