"""``/v1/models``: what is served."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from octavo.server.body import JsonRoute
from octavo.server.errors import json_response
from octavo.server.openai.answers import Model, ModelList
from octavo.server.state import ServerState, state_of

router = APIRouter(route_class=JsonRoute)


@router.get("/v1/models", response_model=None)
async def list_models(request: Request) -> Response:
    """Every name that the model is served under."""
    state = state_of(request)
    return json_response(ModelList([_card(state, name) for name in state.model_names]))


@router.get("/v1/models/{name:path}", response_model=None)
async def get_model(name: str, request: Request) -> Response:
    """One of them."""
    state = state_of(request)
    return json_response(_card(state, state.check_model(name)))


def _card(state: ServerState, name: str) -> Model:
    root, longest = state.engine.info.model, state.max_model_len
    return Model(id=name, created=state.started, root=root, max_model_len=longest)
