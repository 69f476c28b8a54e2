"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string to be completed, wherever the pieces of text are cut.

    Of several that are completed by the same character the longest counts. Text that may be the
    beginning of a stop string is held back, and no more than that.
    """

    __slots__ = ("_held", "_include", "_prefixes", "_stop", "matched")

    def __init__(self, stop: Sequence[str], include: bool = False) -> None:
        """``include`` keeps the stop string itself in the text."""
        self._stop = tuple(sorted(stop, key=len, reverse=True))
        self._include = include
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found; from then on nothing more comes out."""
        # For each character: which beginnings of stop strings (string, length) end in it.
        self._prefixes: dict[str, list[tuple[str, int]]] = {}
        for string in self._stop:
            for length, character in enumerate(string[:-1], 1):
                self._prefixes.setdefault(character, []).append((string, length))
        for beginnings in self._prefixes.values():
            beginnings.sort(key=lambda item: -item[1])

    def feed(self, piece: str) -> str:
        """The text that may be shown now that ``piece`` has come."""
        if self.matched is not None or not piece:
            return ""
        text = self._held + piece
        end = len(text) + 1
        for string in self._stop:
            found = text.find(string, 0, end)
            # Ordered by length, so that of two with the same end the longer stays.
            if found >= 0 and found + len(string) < end:
                self.matched, end = string, found + len(string)
        if self.matched is not None:
            self._held = ""
            return text[: end if self._include else end - len(self.matched)]
        num_safe = len(text) - self._num_open(text)
        self._held = text[num_safe:]
        return text[:num_safe]

    def flush(self) -> str:
        """What was held back, once no more text will come."""
        held, self._held = self._held, ""
        return held

    def _num_open(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        for string, length in self._prefixes.get(text[-1], ()):
            if length <= len(text) and text.endswith(string[:length]):
                return length
        return 0
