"""Prompt lookup: what followed the last few tokens the last time they stood in this request.

Saxena, "Prompt Lookup Decoding", 2023. Texts repeat themselves, and answers repeat their prompts:
code that is edited, documents that are summarised, conversations. The index grows with the request
and is never built again: each token costs one entry for each length of run.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.request import Request
from octavo.core.types import TokenId


class NgramIndex:
    """The runs of tokens of one request, and where each was seen last."""

    __slots__ = ("_ends", "_lengths", "_tokens")

    def __init__(self, tokens: Sequence[TokenId], *, shortest: int, longest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._tokens: list[TokenId] = []
        # Runs that end before the last token: one that ends with it has nothing after it yet.
        self._ends: dict[tuple[TokenId, ...], int] = {}
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[TokenId]) -> None:
        """These tokens have become known."""
        known, ends, lengths = self._tokens, self._ends, self._lengths
        for token in tokens:
            size = len(known)
            for length in lengths:
                if length <= size:
                    ends[tuple(known[size - length : size])] = size
            known.append(token)

    def propose(self, count: int) -> tuple[TokenId, ...]:
        """At most ``count`` tokens that followed the longest run that ends here."""
        known, size = self._tokens, len(self._tokens)
        for length in self._lengths:
            if length < size:
                end = self._ends.get(tuple(known[size - length :]))
                if end is not None:
                    return self._copy(end, count)
        return ()

    def _copy(self, start: int, count: int) -> tuple[TokenId, ...]:
        """What stands from ``start`` on; beyond the end it goes on as if it repeated itself."""
        known, size = self._tokens, len(self._tokens)
        period = size - start
        return tuple(known[start + i % period] for i in range(count))


class NgramProposer:
    """Drafts for any number of requests; indices live as long as their requests run."""

    def __init__(self, *, shortest: int, longest: int) -> None:
        self._shortest, self._longest = shortest, longest
        self._indices: dict[str, NgramIndex] = {}

    def propose(self, request: Request, count: int) -> tuple[TokenId, ...]:
        """At most ``count`` tokens that may follow all known ones."""
        index = self._indices.get(request.request_id)
        if index is None:
            index = self._indices[request.request_id] = NgramIndex(
                request.prompt_token_ids, shortest=self._shortest, longest=self._longest
            )
        index.extend(request.output_token_ids[len(index) - request.num_prompt_tokens :])
        return index.propose(count)

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._indices.pop(request_id, None)
