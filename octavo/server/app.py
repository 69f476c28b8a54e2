"""The HTTP application: routes, error handling, health and metrics."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response

from octavo import __version__
from octavo.core.errors import EngineDead
from octavo.metrics.registry import CONTENT_TYPE
from octavo.server import errors
from octavo.server.body import JsonRoute
from octavo.server.errors import TABLE, error_body, json_response
from octavo.server.openai import chat, completions, models, tokenize
from octavo.server.state import ServerState, state_of

router = APIRouter(route_class=JsonRoute)


def create_app(state: ServerState) -> FastAPI:
    """An ASGI application that serves one engine."""
    app = FastAPI(
        title="Octavo", version=__version__, description="The OpenAI API, served locally."
    )
    app.state.server = state
    errors.install(app)
    for part in (router, chat.router, completions.router, models.router, tokenize.router):
        app.include_router(part)
    return app


@router.get("/health", response_model=None)
@router.get("/ping", response_model=None)
async def health(request: Request) -> Response:
    """200 while the engine answers, 503 with the reason when it is gone."""
    engine = state_of(request).engine
    if engine.error is not None:
        return json_response(error_body(str(engine.error), TABLE[EngineDead]), 503)
    return json_response({"status": "draining" if engine.is_draining else "ok"})


@router.get("/version", response_model=None)
async def version() -> Response:
    """The version of this server."""
    return json_response({"version": __version__})


@router.get("/metrics", response_model=None)
async def metrics(request: Request) -> Response:
    """Everything that Prometheus wants to know."""
    return Response(state_of(request).engine.metrics.exposition(), media_type=CONTENT_TYPE)
