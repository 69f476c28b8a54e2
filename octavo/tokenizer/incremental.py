"""Token ids to text while they arrive: whole characters only, at a constant cost a token.

For vocabularies whose tokens have known bytes (see `pieces`) this is an incremental UTF-8 decoder
over those bytes. For any other, the backend decodes a short window of tokens with and without the
new ones, and the difference is the new text.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable, Sequence
from typing import Protocol

from octavo.core.types import TokenId
from octavo.tokenizer.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_WINDOW_TOKENS = 6
"""Tokens of context that decide how the next one is spelled: its leading space, mostly."""
_MAX_PENDING_TOKENS = 16
"""Tokens without a whole character after which the window decoder stops waiting: no character
has more than four bytes."""


class IncrementalDecoder(Protocol):
    """Decodes one completion.

    Joined, all that `step` and then `flush` return is the text of the completion as it stands
    after its prompt, however its tokens were divided among steps: ``decode(prompt + output)``
    without ``decode(prompt)``. A character that the prompt's last token only begins is completed.
    """

    def step(self, token_ids: Sequence[TokenId]) -> str:
        """The text that these tokens complete."""

    def flush(self) -> str:
        """What remains at the end: U+FFFD for the bytes of an unfinished character."""


def incremental_decoder(
    tokenizer: Tokenizer,
    prompt_ids: Sequence[TokenId] = (),
    skip_special_tokens: bool = True,
    spaces_between_special_tokens: bool = True,
    shown: Iterable[TokenId] = (),
) -> IncrementalDecoder:
    """The decoder that fits the tokenizer; the options are those of `Tokenizer.decode`, and
    ``shown`` special tokens are kept in any case."""
    hidden = tokenizer.all_special_ids.difference(shown) if skip_special_tokens else frozenset()
    if tokenizer.rules is not None:
        return ByteDecoder(tokenizer, prompt_ids, hidden)
    return WindowDecoder(tokenizer, prompt_ids, hidden, spaces_between_special_tokens)


class ByteDecoder:
    """Joins the tokens' own bytes and holds back the last ones while they may begin a character.

    Neither spelling of bytes puts spaces between special tokens.
    """

    __slots__ = ("_after_half_character", "_num_stripped", "_pending", "_pieces")

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[TokenId], hidden: frozenset[TokenId]
    ) -> None:
        self._pieces = tokenizer.pieces_without(hidden)
        tail = b""
        for token_id in reversed(prompt_ids):
            tail = self._pieces[token_id] + tail
            if len(tail) > 3:  # an unfinished character has three bytes at most
                break
        self._num_stripped = 0 if tail else self._pieces.num_stripped_spaces
        self._pending = tail[utf_8_decode(tail, "replace", False)[1] :]
        self._after_half_character = bool(self._pending)

    def step(self, token_ids: Sequence[TokenId]) -> str:
        """The text that these tokens complete."""
        pieces = self._pieces
        if len(token_ids) == 1:
            data = self._pending + pieces[token_ids[0]]
        else:
            data = self._pending + b"".join([pieces[i] for i in token_ids])
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        if text and (self._num_stripped or self._after_half_character):
            return self._begin(text)
        return text

    def flush(self) -> str:
        """What remains at the end: U+FFFD for the bytes of an unfinished character."""
        text = self._pending.decode("utf-8", "replace")
        self._pending = b""
        return self._begin(text)

    def _begin(self, text: str) -> str:
        """Takes off the front of the completion what belongs to the prompt's text, or to none."""
        if self._after_half_character and text:
            self._after_half_character = False
            return text.removeprefix(_REPLACEMENT)
        while self._num_stripped and text:
            self._num_stripped -= 1
            if not text.startswith(" "):
                self._num_stripped = 0
            text = text.removeprefix(" ")
        return text


class WindowDecoder:
    """Decodes through the backend, for decoders that this package does not know."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[TokenId],
        hidden: frozenset[TokenId],
        spaces_between_special_tokens: bool,
    ) -> None:
        self._tokenizer = tokenizer
        special = tokenizer.all_special_ids
        self._hidden = hidden
        self._split_between = frozenset() if spaces_between_special_tokens else special
        seen = [i for i in prompt_ids[-4 * _WINDOW_TOKENS :] if self._is_visible(i)]
        self._window = seen[-_WINDOW_TOKENS:]
        self._window_text = self._decode(self._window)
        self._pending: list[TokenId] = []

    def step(self, token_ids: Sequence[TokenId]) -> str:
        """The text that these tokens complete."""
        return "".join([self._next(i) for i in token_ids if self._is_visible(i)])

    def flush(self) -> str:
        """What remains at the end: U+FFFD for the bytes of an unfinished character."""
        return self._take(self._decode(self._window + self._pending))

    def _next(self, token_id: TokenId) -> str:
        before = ""
        last = self._pending[-1:] or self._window[-1:]
        if token_id in self._split_between and last and last[0] in self._split_between:
            before = self.flush()
            self._window, self._window_text = [], ""
        self._pending.append(token_id)
        text = self._decode(self._window + self._pending)
        if text.endswith(_REPLACEMENT) and len(self._pending) < _MAX_PENDING_TOKENS:
            return before
        return before + self._take(text)

    def _take(self, text: str) -> str:
        new = text[len(self._window_text) :]
        self._window = (self._window + self._pending)[-_WINDOW_TOKENS:]
        self._window_text = self._decode(self._window)
        self._pending = []
        return new

    def _is_visible(self, token_id: TokenId) -> bool:
        return 0 <= token_id < self._tokenizer.vocab_size and token_id not in self._hidden

    def _decode(self, ids: list[TokenId]) -> str:
        return self._tokenizer.backend.decode(ids, skip_special_tokens=False)
