"""``octavo top``: a server's cache, requests and rates at a terminal."""

from __future__ import annotations

import argparse

from octavo.core import env

DEFAULT_URL = "http://127.0.0.1:8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument(
        "url", nargs="?", default=DEFAULT_URL, metavar="URL", help="of the server [%(default)s]"
    )
    parser.add_argument("--api-key", metavar="KEY", help="a key that opens /stats [OCTAVO_API_KEY]")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="print one frame and leave")
    form.add_argument("--json", action="store_true", help="print one JSON object and leave")


def run(args: argparse.Namespace) -> int:
    """Shows it until the user leaves."""
    from octavo.top import app
    from octavo.top.client import Server

    server = Server(args.url, args.api_key or env.api_key())
    if args.json:
        app.show_json(server)
    elif args.once:
        app.show_once(server)
    else:
        app.run_app(server)
    return 0
