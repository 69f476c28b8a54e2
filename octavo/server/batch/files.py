"""The files of a batch: requests are read one at a time, outcomes written one line at a time.

What is in the output file is valid after every line, whatever ends the process: at worst its last
line is cut short, which the next `open` takes away.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from octavo.core.errors import ConfigError
from octavo.server.batch.lines import Outcome

_decoder = msgspec.json.Decoder(Outcome)


def requests(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, and their numbers from 1 on.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


class OutcomeFile:
    """Outcomes, in the order in which they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None

    def is_empty(self) -> bool:
        """Whether nothing is in it, or it does not exist."""
        with self._blaming("read"):
            return not self.path.exists() or (self.path.is_file() and not self.path.stat().st_size)

    def survey(self, wanted: Collection[str]) -> set[str]:
        """Ids of the requests that need not be made again. Changes nothing.

        Raises:
            ConfigError: a line is no outcome, or that of a request which is not ``wanted``.
        """
        found: set[str] = set()
        for number, _, outcome in self._outcomes():
            name = outcome.custom_id
            if name is not None and name not in wanted:
                raise ConfigError(
                    f"{self.path}, line {number}, is about {name!r}, which is no request of this "
                    "batch: choose another output file"
                )
            if name is not None and outcome.is_final:
                found.add(name)
        return found

    def check_writable(self) -> None:
        """Finds out before any work is done. The file exists afterwards.

        Raises:
            ConfigError: it cannot be written.
        """
        with self._blaming("written"):
            self.path.open("ab").close()

    def open(self, kept: Collection[str] = ()) -> None:
        """Makes it ready for `append`; of what is in it, only the outcomes of these requests stay.

        Raises:
            ConfigError: it cannot be written.
        """
        draft = self.path.with_name(f"{self.path.name}.partial")
        with self._blaming("written"):
            if kept:
                try:
                    with draft.open("wb") as new:
                        for _, line, outcome in self._outcomes():
                            if outcome.is_final and outcome.custom_id in kept:
                                new.write(line)
                    os.replace(draft, self.path)
                finally:
                    draft.unlink(missing_ok=True)
            self._file = self.path.open("ab" if kept else "wb", buffering=0)

    def _outcomes(self) -> Iterator[tuple[int, bytes, Outcome]]:
        """Number, bytes and meaning of each line, save for a last one that was cut short."""
        with self._blaming("read"), self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield number, line, _decoder.decode(line)
                except msgspec.MsgspecError as error:
                    raise ConfigError(
                        f"{self.path}, line {number}, is no outcome of a batch ({error}): choose "
                        "another output file"
                    ) from None

    @contextmanager
    def _blaming(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be {done}: {error.strerror}") from error

    def append(self, outcome: Outcome) -> None:
        """Writes a line, and hands it to the operating system.

        Raises:
            ConfigError: that is not possible, perhaps since the disk is full.
        """
        assert self._file is not None, "the file is not open"  # noqa: S101 - our own order of calls
        rest = memoryview(msgspec.json.encode(outcome) + b"\n")
        with self._blaming("written"):
            while rest:
                rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
