"""``/v1/messages``: a conversation in, the assistant's next message out, in Anthropic's words."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import ClassVar

from fastapi import APIRouter, Request, Response

from octavo.server import dialect
from octavo.server.anthropic.answers import Answer, TokensCount, framed
from octavo.server.anthropic.schemas import CountTokensRequest, MessagesRequest
from octavo.server.anthropic.translate import NAMES, template_fields, thinks, translated
from octavo.server.body import JsonRoute
from octavo.server.errors import body_of, json_response, renamed
from octavo.server.openai import schemas as chat
from octavo.server.openai.chat import chat_job
from octavo.server.openai.common import Job
from octavo.server.openai.conversation import tool_use
from octavo.server.openai.prompts import encode_chat, off_loop
from octavo.server.sse import named_event, or_disconnect, stream_response
from octavo.server.state import ServerState, state_of

PATH = "/v1/messages"


class MessagesRoute(JsonRoute):
    """A route whose errors name parameters as they are called here."""

    names: ClassVar[Mapping[str, str]] = NAMES


router = APIRouter(route_class=MessagesRoute)


@router.post(PATH, response_model=None)
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answers a conversation."""
    size = len(await request.body())
    job = await off_loop(size, _job, body, state_of(request))
    answer = Answer(
        job,
        is_cut_by_context=job.params.max_tokens != body.max_tokens,
        shows_thinking=thinks(body) is not False,
    )
    if body.stream:
        return await stream_response(request, _events(job, answer), _error_event)
    answer.feed(await or_disconnect(request, dialect.whole(job)))
    return json_response(answer.message)


@router.post(f"{PATH}/count_tokens", response_model=None)
async def count_tokens(body: CountTokensRequest, request: Request) -> Response:
    """Tokens of a conversation's prompt."""
    size = len(await request.body())
    return json_response(TokensCount(await off_loop(size, _count, body, state_of(request))))


def _job(body: MessagesRequest, state: ServerState) -> Job:
    """A limit beyond the context means all that the context holds: clients of this API must name
    one, and cannot know how many tokens their prompt has."""
    job = chat_job(translated(body, state), state, dialect.new_id("msg"))
    room = job.params.max_tokens or body.max_tokens
    job.params = replace(job.params, max_tokens=min(body.max_tokens, room))
    return job


def _count(body: CountTokensRequest, state: ServerState) -> int:
    state.check_model(body.model)
    fields = template_fields(body, state)
    conversation = chat.ChatCompletionRequest.model_construct(**fields)
    shows_tools = tool_use(conversation).mode != "none"
    return len(encode_chat(conversation.messages, conversation, state, shows_tools=shows_tools))


async def _events(job: Job, answer: Answer) -> AsyncGenerator[bytes, None]:
    async with aclosing(dialect.pieces(job)) as pieces:
        async for piece in pieces:
            yield framed(answer.feed(piece))


def _error_event(error: Exception) -> bytes:
    return named_event("error", body_of(renamed(error, NAMES), path=PATH))
