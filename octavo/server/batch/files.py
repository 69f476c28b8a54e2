"""The files of a batch: requests are read one at a time, outcomes written one line at a time.

What is in the output file is valid after every line, whatever ends the process: at worst its last
line is cut short, and `resume` takes that away.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

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
        self._file: BinaryIO | None = None

    def is_empty(self) -> bool:
        """Whether nothing is in it, or it does not exist."""
        try:
            return not self.path.exists() or (self.path.is_file() and self.path.stat().st_size == 0)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from error

    def resume(self, wanted: Collection[str]) -> set[str]:
        """Takes out the lines whose requests should be made again; returns the ids of the others.

        Raises:
            ConfigError: it has a line that is no outcome, or one of a request that is not
                ``wanted``. Nothing has changed then.
        """
        kept: set[str] = set()
        draft = self.path.with_name(f"{self.path.name}.partial")
        try:
            with self.path.open("rb") as old, draft.open("wb") as new:
                for number, line in enumerate(old, 1):
                    outcome = self._outcome(number, line)
                    name = None if outcome is None else outcome.custom_id
                    if name is not None and name not in wanted:
                        raise ConfigError(
                            f"{self.path}, line {number}, is about {name!r}, which is no request "
                            "of this batch: choose another output file"
                        )
                    if outcome is not None and name is not None and outcome.is_final:
                        kept.add(name)
                        new.write(line)
            os.replace(draft, self.path)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from error
        finally:
            draft.unlink(missing_ok=True)
        return kept

    def _outcome(self, number: int, line: bytes) -> Outcome | None:
        """None for a last line that was cut short."""
        if not line.endswith(b"\n"):
            return None
        try:
            return _decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{self.path}, line {number}, is no outcome of a batch ({error}): choose another "
                "output file"
            ) from None

    def open(self, *, keep: bool) -> None:
        """Makes it ready for `append`; what is in it stays only if ``keep``.

        Raises:
            ConfigError: it cannot be written.
        """
        try:
            self._file = self.path.open("ab" if keep else "wb")
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from error

    def append(self, outcome: Outcome) -> None:
        """Writes a line, and hands it to the operating system.

        Raises:
            ConfigError: that is not possible, perhaps since the disk is full.
        """
        assert self._file is not None, "the file is not open"  # noqa: S101 - our own order of calls
        try:
            self._file.write(msgspec.json.encode(outcome) + b"\n")
            self._file.flush()
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
