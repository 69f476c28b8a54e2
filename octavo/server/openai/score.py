"""``/v1/score``: how much alike texts are."""

from __future__ import annotations

import time
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from octavo.core.types import TokenId
from octavo.front.embedding import cosine, pairs
from octavo.server.body import JsonRoute
from octavo.server.errors import json_response
from octavo.server.openai.common import check_entry, new_id
from octavo.server.openai.pooling import embed, encode, usage_of
from octavo.server.openai.prompts import off_loop
from octavo.server.openai.responses import ScoreItem, ScoreList
from octavo.server.openai.schemas import ScoreRequest
from octavo.server.sse import or_disconnect
from octavo.server.state import ServerState, state_of

router = APIRouter(route_class=JsonRoute)


class _Work(NamedTuple):
    texts: list[list[TokenId]]
    """Each text once."""
    pairs: list[tuple[int, int]]
    """Which of them to compare."""


@router.post("/score", response_model=None)
@router.post("/v1/score", response_model=None)
async def score(body: ScoreRequest, request: Request) -> Response:
    """Cosines of the embeddings of one text and of several others, or of pairs of texts."""
    state = state_of(request)
    model = state.check_model(body.model)
    work = await off_loop(len(await request.body()), _work, body, state)
    name = new_id("score")
    found = await or_disconnect(request, embed(work.texts, body, state, name))
    data = [
        ScoreItem(index, cosine(found[a].vector, found[b].vector))
        for index, (a, b) in enumerate(work.pairs)
    ]
    return json_response(ScoreList(name, int(time.time()), model, data, usage_of(found)))


def _work(body: ScoreRequest, state: ServerState) -> _Work:
    """Checks everything that can be checked before the engine hears of the request."""
    check_entry(state, timeout=body.timeout, priority=body.priority)
    first, second = (
        encode(body.text_1, "text_1", body, state),
        encode(body.text_2, "text_2", body, state),
    )
    couples = pairs(len(first), len(second))
    return _Work([*first, *second], [(a, len(first) + b) for a, b in couples])
