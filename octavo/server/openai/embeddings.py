"""``/v1/embeddings``: texts in, vectors of length 1 out."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from octavo.core.errors import UnsupportedParameter
from octavo.core.types import TokenId
from octavo.front.embedding import Embedding, Vector
from octavo.server.body import JsonRoute
from octavo.server.errors import json_response
from octavo.server.openai.common import check_entry, new_id
from octavo.server.openai.pooling import embed, encode, usage_of
from octavo.server.openai.prompts import off_loop
from octavo.server.openai.responses import EmbeddingItem, EmbeddingList
from octavo.server.openai.schemas import EmbeddingRequest
from octavo.server.sse import or_disconnect
from octavo.server.state import ServerState, state_of

router = APIRouter(route_class=JsonRoute)

_JSON_BYTES = {"float": 20, "base64": 6}
"""Of one number in an answer, about."""


@router.post("/v1/embeddings", response_model=None)
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """Texts as vectors."""
    state = state_of(request)
    model = state.check_model(body.model)
    texts = await off_loop(len(await request.body()), _texts, body, state)
    found = await or_disconnect(request, embed(texts, body, state, new_id("embd")))
    size = len(found) * len(found[0].vector) * _JSON_BYTES[body.encoding_format or "float"]
    return await off_loop(size, _response, body, model, found)


def _texts(body: EmbeddingRequest, state: ServerState) -> list[list[TokenId]]:
    """Checks everything that can be checked before the engine hears of the request."""
    check_entry(state, timeout=body.timeout, priority=body.priority)
    size = state.engine.info.spec.hidden_size
    if body.dimensions not in (None, size):
        raise UnsupportedParameter(
            f"dimensions is {body.dimensions}, but this model's embeddings have {size}, and were "
            "not trained to be cut: leave it out",
            param="dimensions",
        )
    return encode(body.input, "input", body, state)


def _response(body: EmbeddingRequest, model: str, found: Sequence[Embedding]) -> Response:
    spell = _base64 if body.encoding_format == "base64" else _numbers
    data = [EmbeddingItem(index, spell(item.vector)) for index, item in enumerate(found)]
    return json_response(EmbeddingList(data, model, usage_of(found)))


def _numbers(vector: Vector) -> list[float]:
    numbers: list[float] = vector.tolist()
    return numbers


def _base64(vector: Vector) -> str:
    return b64encode(vector.astype("<f4").tobytes()).decode()
