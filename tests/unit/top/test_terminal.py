"""Keys, however a slow line cuts them; and addresses of servers."""

from __future__ import annotations

import pytest

from octavo.core.errors import ConfigError
from octavo.top.client import Server
from octavo.top.terminal import Keys


def test_keys_by_name() -> None:
    assert Keys().feed("s\x1b[A\x1bOB\x1b[6~\x1b[1;5Cq\x1b[H") == [
        *("s", "up", "down", "page down", "q", "home")
    ]


def test_a_sequence_that_comes_in_pieces_is_one_key() -> None:
    keys = Keys()
    assert keys.feed("a\x1b") == ["a"] and keys.is_unfinished
    assert keys.feed("[") == [] and keys.is_unfinished
    assert keys.feed("B") == ["down"] and not keys.is_unfinished


def test_an_escape_alone_is_the_escape_key() -> None:
    keys = Keys()
    assert keys.feed("\x1b") == []
    assert keys.give_up() == ["escape"] and not keys.is_unfinished
    assert keys.give_up() == []


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h/llm/v1/", "http://h/llm"),
        ("https://h:1", "https://h:1"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_a_server_is_found_by_its_base_url(given: str, url: str) -> None:
    assert Server(given).url == url


@pytest.mark.parametrize(
    "given", ["", "ftp://h", "http://", "http://h:port", "http://k@h", "http://h?a", "http://[h"]
)
def test_what_is_no_servers_url(given: str) -> None:
    with pytest.raises(ConfigError):
        Server(given)


@pytest.mark.parametrize("key", ["a\nb", "ключ"])
def test_a_key_that_cannot_be_sent(key: str) -> None:
    with pytest.raises(ConfigError, match="API key"):
        Server("h", key)
