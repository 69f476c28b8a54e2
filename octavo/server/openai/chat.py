"""``/v1/chat/completions``: a conversation in, the assistant's next message out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from octavo.core.errors import InvalidParameter, UnsupportedParameter
from octavo.front.outputs import CompletionDelta, CompletionOutput, DecodedLogprob
from octavo.server.errors import json_response
from octavo.server.openai.common import (
    Job,
    UsageCounter,
    new_id,
    prompt_logprobs_json,
    usage_of,
)
from octavo.server.openai.responses import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    TokenLogprob,
    TopLogprob,
)
from octavo.server.openai.sampling import sampling_params
from octavo.server.openai.schemas import ChatCompletionRequest, Message
from octavo.server.sse import DONE, event, or_disconnect, stream_response
from octavo.server.state import ServerState, rendered_chat, state_of

router = APIRouter()

KIND = "chat.completion"
CHUNK = "chat.completion.chunk"


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
    """Answers a conversation."""
    job = make_job(body, state_of(request))
    if body.stream:
        return await stream_response(request, _events(job, body))
    outputs = await or_disconnect(request, job.complete())
    output = outputs[0]
    answer = job.envelope(
        KIND, [_whole_choice(body, completion) for completion in output.outputs], usage_of(outputs)
    )
    answer.prompt_logprobs = prompt_logprobs_json(output.prompt_logprobs)
    if body.return_token_ids:
        answer.prompt_token_ids = list(output.prompt_token_ids)
    return json_response(answer)


def make_job(body: ChatCompletionRequest, state: ServerState) -> Job:
    """Checks everything that can be checked before the engine hears of the request."""
    model = state.check_model(body.model)
    max_tokens = body.max_tokens
    if body.max_completion_tokens is not None:
        if max_tokens not in (None, body.max_completion_tokens):
            raise InvalidParameter(
                f"max_tokens is {max_tokens} and max_completion_tokens {body.max_completion_tokens}"
                ": they mean the same; send one",
                param="max_completion_tokens",
            )
        max_tokens = body.max_completion_tokens
    prompt = rendered_chat(
        state,
        plain_messages(body.messages),
        body.chat_template,
        add_generation_prompt=body.add_generation_prompt,
        **(body.chat_template_kwargs or {}),
    )
    state.check_prompt(prompt, "messages")
    params = sampling_params(
        body,
        state,
        prompt_tokens=len(prompt),
        max_tokens=max_tokens,
        logprobs=_num_logprobs(body),
    )
    return Job(
        state=state, body=body, model=model, prompts=[prompt], params=params, id=new_id("chatcmpl")
    )


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: text parts joined.

    Raises:
        UnsupportedParameter: a message has tool calls.
    """
    plain = []
    for message in messages:
        if message.model_extra and message.model_extra.get("tool_calls"):
            raise UnsupportedParameter(
                "messages with tool_calls are not supported by this server", param="messages"
            )
        content = message.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        plain.append(
            {"role": message.role, **(message.model_extra or {}), "content": content or ""}
        )
    return plain


def _num_logprobs(body: ChatCompletionRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidParameter(
            "top_logprobs is set, but logprobs is not true", param="top_logprobs"
        )
    return (body.top_logprobs or 0) if body.logprobs else None


def _whole_choice(body: ChatCompletionRequest, completion: CompletionOutput) -> ChatChoice:
    return ChatChoice(
        completion.index,
        ChatMessage("assistant", completion.text),
        logprobs_json(completion.logprobs or ()) if body.logprobs else None,
        completion.finish_reason,
        completion.stop_reason,
        completion.token_ids if body.return_token_ids else None,
    )


async def _events(job: Job, body: ChatCompletionRequest) -> AsyncIterator[bytes]:
    """The stream of one request: roles, pieces, then perhaps usage, then the end mark."""
    counter = UsageCounter(job.prompts)
    options = body.stream_options
    every = bool(options and options.continuous_usage_stats)
    begun = False
    async for number, deltas in job.stream():
        counter.add(number, deltas)
        usage = counter.usage if every else None
        if not begun:
            begun = True
            for index in range(job.params.n):
                opening = ChatChunkChoice(index, ChatDelta("assistant", ""), None, None)
                yield event(job.envelope(CHUNK, [opening], usage))
        for delta in deltas:
            yield event(job.envelope(CHUNK, [_chunk(body, delta)], usage))
    if options and options.include_usage:
        yield event(job.envelope(CHUNK, [], counter.usage))
    yield DONE


def _chunk(body: ChatCompletionRequest, delta: CompletionDelta) -> ChatChunkChoice:
    return ChatChunkChoice(
        delta.index,
        ChatDelta(content=delta.text),
        logprobs_json(delta.logprobs) if body.logprobs else None,
        delta.finish_reason,
        delta.stop_reason,
        list(delta.token_ids) if body.return_token_ids else None,
    )


def logprobs_json(entries: Sequence[DecodedLogprob]) -> ChatLogprobs:
    """The newer shape, with the exact bytes of each token."""
    return ChatLogprobs(
        [
            TokenLogprob(
                entry.text,
                entry.logprob,
                list(entry.raw),
                [TopLogprob(top.text, top.logprob, list(top.raw)) for top in entry.top],
            )
            for entry in entries
        ]
    )
