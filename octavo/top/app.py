"""The loop: events and keys come in, frames go out."""

from __future__ import annotations

import copy
import http.client
import json
import shutil
import sys
import threading
import time
from contextlib import suppress

from rich.console import Console

from octavo.core.errors import ConfigError, EngineError
from octavo.metrics.live import Picture
from octavo.top.client import Server
from octavo.top.figures import as_json
from octavo.top.follow import Follower
from octavo.top.frame import Size, frame
from octavo.top.lines import encoded
from octavo.top.terminal import Pace, Terminal
from octavo.top.view import View

_SHORTEST_S = 0.25
"""Between two frames that no key has asked for."""
_LONGEST_S = 1.0
"""Between two looks at the clock."""
_FIRST_S = 10.0
_SAMPLE_S = 6.0
"""Rates are told of every 2 seconds."""


class App:
    """One user's look at one server."""

    def __init__(self, server: Server, terminal: Terminal, colours: str | None) -> None:
        self._server = server
        self._terminal = terminal
        self._colours = colours
        self._follower = Follower(server, terminal.wake)
        self._view = View()

    def run(self) -> None:
        """Until the user has had enough.

        Raises:
            Refused: the server does not let us in.
        """
        self._follower.start()
        pace = Pace(_SHORTEST_S)
        self._draw()
        while True:
            keys = self._terminal.wait(_LONGEST_S)
            if self._follower.refusal is not None:
                raise self._follower.refusal
            if any(self._press(key) for key in keys):
                return
            while not keys and pace.wait_s() > 0:
                # Events that come meanwhile share the frame; a key does not wait for it.
                keys = self._terminal.wait(pace.wait_s())
                if any(self._press(key) for key in keys):
                    return
            self._draw()
            pace.drew()

    def _press(self, key: str) -> bool:
        """Returns whether it was the last one."""
        if self._view.confirming is None and key == "q":
            return True
        width, _ = self._terminal.size()
        with self._follower.lock:
            picture = self._view.frozen or self._follower.picture
            aborted = self._view.press(key, picture, width)
        if aborted is not None:
            self._view.message = f"aborting {aborted}"
            threading.Thread(target=self._abort, args=(aborted,), daemon=True).start()
        return False

    def _abort(self, request_id: str) -> None:
        try:
            aborted = self._server.abort(request_id)
            self._view.message = f"aborted {', '.join(aborted)}"
        except (EngineError, OSError, http.client.HTTPException, ValueError, KeyError) as error:
            self._view.message = f"not aborted: {error}"
        self._terminal.wake()

    def _draw(self) -> None:
        width, height = self._terminal.size()
        size = Size(width, height, self._colours is not None)
        told = self._follower.link.told(time.monotonic())
        with self._follower.lock:
            picture = self._view.frozen or self._follower.picture
            lines = frame(picture, told, self._view, size, self._server.url)
        self._terminal.show([encoded(line, self._colours) for line in lines], (width, height))


def run_app(server: Server) -> None:
    """Shows a server until the user leaves.

    Raises:
        ConfigError: there is no terminal to show it on.
        Refused: the server does not let us in.
    """
    console = Console()
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or console.is_dumb_terminal:
        raise ConfigError("octavo top needs a terminal with a cursor: use --once or --json here")
    with Terminal() as terminal, suppress(EOFError):
        App(server, terminal, colours_of(console)).run()


def show_once(server: Server) -> None:
    """Prints one frame, as wide and high as the terminal is."""
    picture = _looked(server)
    width, height = shutil.get_terminal_size()
    colours = colours_of(Console())
    size = Size(width, height, colours is not None)
    lines = frame(picture, "", View(), size, server.url)[:-1]
    for line in lines:
        print(encoded(line, colours).rstrip())


def show_json(server: Server) -> None:
    """Prints everything that is known as one JSON object."""
    print(json.dumps(as_json(_looked(server), server.url)))


def colours_of(console: Console) -> str | None:
    """What the standard output can show; None also where it has no half-blocks."""
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return console.color_system if is_unicode and not console.no_color else None


def _looked(server: Server) -> Picture:
    """A picture with its rates, if the server tells of them in time."""
    news = threading.Event()
    follower = Follower(server, news.set)
    follower.start()
    deadline = time.monotonic() + _FIRST_S
    while not follower.num_samples:
        if not news.wait(max(0.0, deadline - time.monotonic())):
            break
        news.clear()
        if not follower.link.is_live:
            break
        if follower.picture.state.get("status") not in ("ok", "draining"):
            break
        deadline = min(deadline, time.monotonic() + _SAMPLE_S)
    if follower.refusal is not None:
        raise follower.refusal
    with follower.lock:
        if follower.picture.state:
            return copy.deepcopy(follower.picture)
    problem = follower.link.problem or f"no answer within {_FIRST_S:g} s"
    raise EngineError(f"{server.url}: {problem}; is an octavo server there?")
