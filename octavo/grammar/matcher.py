"""Where one request's output stands in its grammar."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher

from octavo.core.types import TokenId
from octavo.grammar.source import plain


class Matcher:
    """Follows the tokens of one output through a grammar.

    Never raises for what a grammar or a token does: it enters an error state and stays there, and
    ``error`` says why, so that one request's trouble is no other's.
    """

    __slots__ = ("_fault", "inner", "mask_bytes")

    def __init__(self, inner: LLMatcher, vocab_size: int) -> None:
        self.inner = inner
        """For computing the masks of many requests at once."""
        self.mask_bytes = -(-vocab_size // 32) * 4
        """Of a mask: one bit a token, in whole 32-bit words."""
        self._fault: str | None = None

    @property
    def error(self) -> str | None:
        """Why nothing more can be told of this output."""
        if self._fault is None and self.inner.is_error():
            self._fault = plain(self.inner.get_error())
        return self._fault

    @property
    def is_accepting(self) -> bool:
        """Whether the output so far is a whole text of the grammar: it may end here."""
        return self.error is None and self.inner.is_accepting()

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow: the output is whole, and ends here."""
        return self.error is None and self.inner.is_stopped()

    def consume(self, token_ids: Sequence[TokenId]) -> None:
        """These tokens have been generated; what the grammar does not allow is an error."""
        if self.error is None and token_ids:
            self.inner.consume_tokens(list(token_ids))

    def validate(self, token_ids: Sequence[TokenId]) -> int:
        """How many of these tokens, from the first on, the grammar would allow here."""
        if self.error is not None:
            return 0
        return self.inner.validate_tokens(list(token_ids))

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last tokens consumed; more than there are is an error."""
        if self.error is None and num_tokens:
            self.inner.rollback(num_tokens)

    def fail(self, reason: str) -> None:
        """Enters the error state for a reason of ours."""
        self._fault = self._fault or reason
