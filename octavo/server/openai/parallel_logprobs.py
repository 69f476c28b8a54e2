"""Log-probabilities in the older shape: parallel lists, one entry a token."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TypeAlias

from octavo.front.outputs import DecodedLogprob
from octavo.server.openai.responses import CompletionLogprobs, finite

Entry: TypeAlias = DecodedLogprob | None
"""None stands for the first token of a prompt, which has no log-probability."""


class LogprobLists:
    """Makes the lists of one choice, all at once or piece by piece.

    ``text_offset`` counts the characters that the tokens before have completed, so that a token
    that ends in the middle of a character does not shift those after it.
    """

    def __init__(self, num_top: int, first_prompt_token: bytes) -> None:
        self._num_top = num_top
        self._first = first_prompt_token
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def extended(self, entries: Sequence[Entry]) -> CompletionLogprobs:
        """The lists of the tokens that come next."""
        lists = CompletionLogprobs([], [], [], [])
        for entry in entries:
            raw = self._first if entry is None else entry.raw
            lists.tokens.append(spelled(raw))
            lists.text_offset.append(self._offset)
            self._offset += len(self._decoder.decode(raw))
            if entry is None:
                lists.token_logprobs.append(None)
                lists.top_logprobs.append(None)
            else:
                lists.token_logprobs.append(finite(entry.logprob))
                top = [*entry.top[: self._num_top], entry]
                lists.top_logprobs.append({spelled(item.raw): finite(item.logprob) for item in top})
        return lists


def spelled(raw: bytes) -> str:
    """A token's text; ``bytes:\\xf0\\x9f`` for one that holds no whole characters, as different
    ones must not look alike."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
