"""The HTTP application: routes, error handling, health and metrics."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response

from octavo import __version__
from octavo.metrics.registry import CONTENT_TYPE
from octavo.server import errors
from octavo.server.body import JsonRoute
from octavo.server.errors import body_of, json_response, retry_after
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
    """200 while the engine answers, 503 with the reason while it is gone or being started again."""
    engine = state_of(request).engine
    error = engine.error
    body: dict[str, object] = {"status": engine.status, "engine_restarts": engine.num_restarts}
    if error is None:
        return json_response(body)
    response = json_response(body | body_of(error), 503)
    response.headers.update(retry_after(error))
    return response


@router.get("/version", response_model=None)
async def version() -> Response:
    """The version of this server."""
    return json_response({"version": __version__})


@router.get("/metrics", response_model=None)
async def metrics(request: Request) -> Response:
    """Everything that Prometheus wants to know."""
    return Response(state_of(request).engine.metrics.exposition(), media_type=CONTENT_TYPE)
