"""Requests to a server over HTTP, with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

from octavo.core.errors import ConfigError, EngineError
from octavo.metrics.live import Json

_SILENCE_S = 25.0
"""A stream says at least every 10 seconds that it is alive."""
_PIECE = 1 << 16
_SHOWN_CHARACTERS = 200


class Refused(EngineError):
    """The server answered, and with no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """Where a server is, and the key that it wants.

    Args:
        url: its base URL, with ``/v1`` at the end or without; ``http://`` may be left out.
        api_key: sent as a bearer token; None for a server without keys.

    Raises:
        ConfigError: it cannot be the URL of a server, or the key cannot be sent.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            self._port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no server's URL: write http://HOST:PORT")
        if parts.username or parts.query or parts.fragment:
            raise ConfigError("the URL has more than host, port and path; a key goes to --api-key")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("the API key has characters that HTTP cannot send")
        self._host = parts.hostname
        self._is_tls = parts.scheme == "https"
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"

    def events(self) -> Iterator[tuple[str, Json]]:
        """Events of ``/stats/stream``, until the server ends it.

        Raises:
            Refused: the answer is not a stream.
            OSError, http.client.HTTPException: the connection failed, or was silent for too long.
        """
        connection = self._connection()
        try:
            answer = self._ask(connection, "GET", "/stats/stream")
            rest = b""
            while piece := answer.read1(_PIECE):
                *frames, rest = (rest + piece).split(b"\n\n")
                for frame in frames:
                    event = _event_of(frame)
                    if event is not None:
                        yield event
        finally:
            connection.close()

    def abort(self, request_id: str) -> list[str]:
        """Ends a request; returns the ids of all that it consisted of.

        Raises:
            Refused: it has ended already, or is somebody else's.
            OSError, http.client.HTTPException: the connection failed.
        """
        connection = self._connection()
        try:
            path = f"/requests/{quote(request_id, safe='')}/abort"
            answer: Json = json.loads(self._ask(connection, "POST", path).read())
            aborted: list[str] = answer["aborted"]
            return aborted
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=_SILENCE_S)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str
    ) -> http.client.HTTPResponse:
        connection.request(method, self._path + path, headers=self._headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise Refused(answer.status, _complaint(answer))
        return answer


def _event_of(frame: bytes) -> tuple[str, Json] | None:
    """Name and data; None for a comment."""
    name, data = "message", ""
    for line in frame.decode().split("\n"):
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data += line.removeprefix("data: ")
    return (name, json.loads(data)) if data else None


def _complaint(answer: http.client.HTTPResponse) -> str:
    """The server's own words, or a proxy's status."""
    raw = answer.read(_PIECE)
    try:
        message = str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = answer.reason
    return f"status {answer.status}: {message[:_SHOWN_CHARACTERS]}"
