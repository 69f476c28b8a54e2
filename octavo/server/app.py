"""The HTTP application: routes, error handling, health and metrics."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo import __version__
from octavo.metrics.registry import CONTENT_TYPE
from octavo.server import abort, dashboard, docs_page, errors, openapi, stats
from octavo.server.access.guard import Guard
from octavo.server.anthropic import messages
from octavo.server.body import JsonRoute
from octavo.server.errors import body_of, json_response, retry_after
from octavo.server.live import routes as live
from octavo.server.observer import Observer
from octavo.server.openai import chat, completions, embeddings, models, score, tokenize
from octavo.server.openai_responses import route as responses
from octavo.server.state import ServerState, state_of

router = APIRouter(route_class=JsonRoute)

_EXPOSED = (
    "Retry-After",
    *(
        f"X-RateLimit-{what}-{kind}"
        for kind in ("Requests", "Tokens")
        for what in ("Limit", "Remaining", "Reset")
    ),
)
"""Headers that pages of other sites may read."""


def create_app(state: ServerState) -> FastAPI:
    """An ASGI application that serves one engine."""
    app = FastAPI(
        title="Octavo",
        version=__version__,
        description="The APIs of OpenAI and Anthropic, served locally.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.server = state
    app.state.hub = live.make_hub(state)
    errors.install(app)
    openai = (chat, completions, models, tokenize, embeddings, score, responses)
    others = (messages, stats, live, abort, docs_page, dashboard)
    routers = (router, *(part.router for part in (*openai, *others)))
    for part in routers:
        app.include_router(part)
    paths = [getattr(route, "path", "") for part in routers for route in part.routes]
    openapi.install(app)
    _install_access(app, state, frozenset(paths))
    return app


def _install_access(app: FastAPI, state: ServerState, paths: frozenset[str]) -> None:
    access, config = state.access, state.config.security
    if access.needs_key or access.hides_metrics:
        app.add_middleware(Guard, access=access)
    if config.allowed_origins:  # last, so outermost: refusals can be read by pages, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
            expose_headers=_EXPOSED,
        )
    # Outside of all that may refuse a request, and inside of what names the root path.
    app.add_middleware(Observer, metrics=state.engine.metrics.http, sinks=state.sinks, paths=paths)
    if state.config.root_path:
        app.add_middleware(_RootPath, root_path=state.config.root_path)


class _RootPath:
    """Names the path that a proxy offers the server under. Routing takes it off where it is; a
    server would put it before every path, even where the proxy has left it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        await self._app({**scope, "root_path": self._root_path}, receive, send)


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
