"""Log-probabilities in the older shape: parallel lists, one entry a token."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeAlias

from octavo.core.types import TokenId
from octavo.front.outputs import DecodedLogprob
from octavo.server.openai.responses import CompletionLogprobs, finite

Entry: TypeAlias = DecodedLogprob | None
"""None stands for the first token of a prompt, which has no log-probability."""


class Echo:
    """A prompt that comes before the output, as its tokens spell it and as the client sees it.

    The tokens may spell more: what the tokenizer puts before or after a text, as the token that
    begins a sequence, or the space before a first word. Such characters have no place in the text.

    Args:
        encoded: tells where the tokenizer has found each token in the text; asked if the text is
            not what the tokens spell, since the tokenizer has changed it.
    """

    def __init__(
        self, tokens: Sequence[bytes], text: str, encoded: Callable[[], list[int]]
    ) -> None:
        self.tokens = tokens
        self.num_characters = len(text)
        self._text = text
        self._encoded = encoded

    def offsets(self) -> list[int]:
        """Where each token begins in the text."""
        first = b"".join(self.tokens).decode("utf-8", "replace").find(self._text)
        if first < 0:
            return self._encoded()
        places, counted = [], _Characters()
        for raw in self.tokens:
            places.append(min(max(0, counted.num_characters - first), self.num_characters))
            counted.add(raw)
        return places


class _Characters:
    """Counts the characters that bytes have completed."""

    __slots__ = ("_decoder", "num_characters")

    def __init__(self, num_characters: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.num_characters = num_characters

    def add(self, raw: bytes) -> None:
        self.num_characters += len(self._decoder.decode(raw))


class LogprobLists:
    """Makes the lists of one choice, all at once or piece by piece.

    ``text_offset`` counts the characters that the tokens before have completed, so that a token
    that ends in the middle of a character does not shift those after it.

    Args:
        hidden: tokens of the output that are left out of its text.
        echo: the prompt, if the text begins with it.
    """

    def __init__(
        self, num_top: int, hidden: Collection[TokenId] = (), echo: Echo | None = None
    ) -> None:
        self._num_top = num_top
        self._hidden = hidden
        self._echo = echo
        self._text = _Characters(0 if echo is None else echo.num_characters)

    def extended(
        self, prompt: Sequence[Entry], output: Iterable[DecodedLogprob]
    ) -> CompletionLogprobs:
        """The lists of the tokens that come next: the whole prompt, once, and then the output."""
        lists = CompletionLogprobs([], [], [], [])
        if prompt and self._echo is not None:
            tokens, places = self._echo.tokens, self._echo.offsets()
            for raw, place, entry in zip(tokens, places, prompt, strict=True):
                self._append(lists, raw, place, entry)
        for entry in output:
            self._append(lists, entry.raw, self._text.num_characters, entry)
            if entry.token_id not in self._hidden:
                self._text.add(entry.raw)
        return lists

    def _append(self, lists: CompletionLogprobs, raw: bytes, place: int, entry: Entry) -> None:
        lists.tokens.append(spelled(raw))
        lists.text_offset.append(place)
        if entry is None:
            lists.token_logprobs.append(None)
            lists.top_logprobs.append(None)
        else:
            lists.token_logprobs.append(finite(entry.logprob))
            top = [*entry.top[: self._num_top], entry]
            lists.top_logprobs.append({spelled(item.raw): finite(item.logprob) for item in top})


def spelled(raw: bytes) -> str:
    """A token's text; ``bytes:\\xf0\\x9f`` for one that holds no whole characters, as different
    ones must not look alike."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
