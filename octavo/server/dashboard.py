"""``/`` and ``/dashboard``: the page that shows the server at work; ``/replay``: recorded traces.

Static files without a build step, which load nothing from other sites; the page reads
``/stats/stream``, and needs no key itself: it asks for one if the stream does.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from octavo.server.assets import Asset, assets
from octavo.server.body import JsonRoute

router = APIRouter(route_class=JsonRoute)

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def _add(path: str, asset: Asset) -> None:
    async def answer(request: Request) -> Response:
        headers = {**_HEADERS, "ETag": asset.etag}
        if request.headers.get("if-none-match") == asset.etag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, media_type=asset.content_type, headers=headers)

    router.add_api_route(
        path, answer, methods=["GET", "HEAD"], include_in_schema=False, response_model=None
    )


for _path, _asset in assets().items():
    _add(_path, _asset)
