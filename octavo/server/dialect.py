"""What other ways to ask for a chat have in common: `anthropic` and `openai_responses`.

Each translates its request into that of chat completions, so that there is one path to the engine,
and one set of limits and refusals; and each translates the events of the answer back.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from octavo.core.types import FinishReason, TokenId
from octavo.front.outputs import DecodedLogprob
from octavo.server.openai import schemas as chat
from octavo.server.openai.common import Job, UsageCounter, usage_of
from octavo.server.openai.responses import Usage
from octavo.server.parsing.events import Event


class Ending(NamedTuple):
    """How an answer ended."""

    finish_reason: FinishReason | None
    stop_reason: TokenId | str | None


class Piece(NamedTuple):
    """What came of an answer at one time."""

    events: list[Event]
    logprobs: list[DecodedLogprob]
    usage: Usage
    """Of everything so far."""
    ending: Ending | None
    """With the last piece."""


def new_id(kind: str) -> str:
    """A fresh id in the style of these APIs."""
    return f"{kind}_{uuid.uuid4().hex}"


def chat_body(body: chat.EngineBody, **fields: Any) -> chat.ChatCompletionRequest:
    """A request in the words of chat completions.

    Args:
        fields: what has another name or form there; checked already.
    """
    shared = {name: getattr(body, name) for name in chat.EngineBody.model_fields}
    return chat.ChatCompletionRequest.model_construct(**{**shared, **fields})


async def whole(job: Job) -> Piece:
    """The answer in one piece."""
    outputs = await job.complete()
    completion = outputs[0].outputs[0]
    parser = job.plan.make_parser(False)
    return Piece(
        [*parser.feed(completion.text), *parser.finish()],
        completion.logprobs or [],
        usage_of(outputs, job.plan.reasoning),
        Ending(completion.finish_reason, completion.stop_reason),
    )


async def pieces(job: Job) -> AsyncGenerator[Piece, None]:
    """The answer as it comes; all events joined are those of `whole`, however it was cut."""
    counter, parser = UsageCounter(job), job.plan.make_parser(True)
    async with aclosing(job.stream()) as stream:
        async for number, deltas in stream:
            for delta in deltas:
                counter.add(number, delta)
                events = parser.feed(delta.text)
                ending = None
                if delta.finish_reason is not None:
                    events += parser.finish()
                    ending = Ending(delta.finish_reason, delta.stop_reason)
                yield Piece(events, list(delta.logprobs), counter.total, ending)


def tool(
    name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None
) -> chat.ToolDefinition:
    """A function that the model may call."""
    function = chat.FunctionDefinition.model_construct(
        name=name, description=description, parameters=parameters, strict=strict
    )
    return chat.ToolDefinition.model_construct(type="function", function=function)


def named_tool(name: str) -> chat.NamedTool:
    """The choice of one tool."""
    return chat.NamedTool(type="function", function=chat.FunctionName(name=name))


def tool_call(name: str, arguments: str, call_id: str | None) -> chat.MessageToolCall:
    """A call in an earlier answer."""
    function = chat.CalledFunction.model_construct(name=name, arguments=arguments)
    return chat.MessageToolCall.model_construct(id=call_id, function=function)
