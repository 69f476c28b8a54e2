"""``/v1/responses``: text or items in, items out. Nothing is kept between requests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from octavo.server import dialect
from octavo.server.body import JsonRoute
from octavo.server.errors import body_of, json_response, renamed
from octavo.server.openai.chat import chat_job
from octavo.server.openai.common import Job
from octavo.server.openai.prompts import off_loop
from octavo.server.openai_responses import bodies
from octavo.server.openai_responses.answer import Answer
from octavo.server.openai_responses.schemas import ResponsesRequest
from octavo.server.openai_responses.translate import NAMES, translated
from octavo.server.sse import named_event, or_disconnect, stream_response
from octavo.server.state import ServerState, state_of


class ResponsesRoute(JsonRoute):
    """A route whose errors name parameters as they are called here."""

    names: ClassVar[Mapping[str, str]] = NAMES


router = APIRouter(route_class=ResponsesRoute)


@router.post("/v1/responses", response_model=None)
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answers text, or a conversation as a list of items."""
    size = len(await request.body())
    job = await off_loop(size, _job, body, state_of(request))
    answer = Answer(_unanswered(job, body))
    if body.stream:
        return await stream_response(request, _events(job, answer), partial(_failed, answer))
    await or_disconnect(request, _fill(job, answer))
    return json_response(answer.response)


async def _fill(job: Job, answer: Answer) -> None:
    """Waits for all of the answer; as a stream if it matters which token belongs to which item."""
    if job.params.logprobs is None:
        answer.feed(await dialect.whole(job))
        return
    async with aclosing(dialect.pieces(job)) as pieces:
        async for piece in pieces:
            answer.feed(piece)


def _job(body: ResponsesRequest, state: ServerState) -> Job:
    return chat_job(translated(body), state, dialect.new_id("resp"))


def _unanswered(job: Job, body: ResponsesRequest) -> bodies.Response:
    """The answer before there is anything of it."""
    effort = None if body.reasoning is None else body.reasoning.effort
    return bodies.Response(
        id=job.id,
        created_at=job.created,
        status="in_progress",
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=job.model,
        output=[],
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": effort, "summary": None},
        safety_identifier=body.safety_identifier,
        temperature=job.params.temperature,
        text={"format": _json(body.text and body.text.format) or {"type": "text"}},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        tool_choice=_json(body.tool_choice) or "auto",
        tools=[_json(tool) for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=job.params.top_p,
        user=body.user,
    )


def _json(sent: Any) -> Any:
    """A part of the request as it was sent."""
    if isinstance(sent, BaseModel):
        return sent.model_dump(by_alias=True, exclude_unset=True)
    return sent


async def _events(job: Job, answer: Answer) -> AsyncGenerator[bytes, None]:
    async with aclosing(dialect.pieces(job)) as pieces:
        async for piece in pieces:
            yield _framed(answer.feed(piece))


def _framed(events: list[bodies.ResponsesEvent]) -> bytes:
    return b"".join([named_event(event.type, event) for event in events])


def _failed(answer: Answer, error: Exception) -> bytes:
    message = body_of(renamed(error, NAMES))["error"]["message"]
    return _framed([answer.failed(message)])
