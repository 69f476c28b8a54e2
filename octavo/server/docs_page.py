"""``/docs``: the endpoints on one page that loads nothing from anywhere.

The framework's own pages fetch scripts from other sites, which many servers cannot reach and none
should trust. Tools take the whole description from ``/openapi.json``.
"""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from octavo.server.body import JsonRoute

router = APIRouter(route_class=JsonRoute)

_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}"
    "td{padding:.2rem 1rem .2rem 0;vertical-align:top}code{font-size:.9em}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}a{color:#8bf}}"
)


@router.get("/docs", include_in_schema=False, response_class=HTMLResponse)
async def docs(request: Request) -> HTMLResponse:
    """A table of endpoints."""
    return HTMLResponse(page(request.app.openapi()), headers=_HEADERS)


def page(schema: dict[str, Any]) -> str:
    """The page for an OpenAPI document."""
    title = f"{schema['info']['title']} {schema['info']['version']}"
    rows = "".join(
        f"<tr><td><code>{escape(method.upper())} {escape(path)}</code></td>"
        f"<td>{escape(operation.get('description', ''))}</td></tr>"
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>{escape(schema['info']['description'])}"
        f'</p><table>{rows}</table><p>All parameters: <a href="openapi.json">openapi.json</a></p>'
        "</html>\n"
    )
