"""Reads a file of lines while another process, or another machine, writes it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

ANCHOR = 64
"""Bytes before the place that was reached, by which a file that was written anew is noticed."""


class GrowingFile:
    """The whole lines of a file, each given once; a torn last line is given when it is whole.

    A file that was cut or written anew, as `--resume` does, is read from its start again: then
    `generation` is another number, and what was known of the old lines is void.

    Attributes:
        offset, size: Bytes that were read, and that the file had at the last look.
        complete: Whether all was read, a torn last line aside.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        self.offset = 0
        self.size = 0
        self.complete = False
        self._file: tuple[int, int] | None = None
        self._anchor = b""

    def look(self) -> None:
        """Starts again if the file is another one."""
        try:
            stream = self.path.open("rb")
        except OSError:
            if self._file is not None:
                self._restart(None)
            self.size = 0
            return
        with stream:
            found = os.fstat(stream.fileno())
            identity = (found.st_dev, found.st_ino)
            self.size = found.st_size
            if identity != self._file or found.st_size < self.offset or not self._anchored(stream):
                self._restart(identity)

    def lines(self, until: float) -> Iterator[tuple[int, bytes]]:
        """Lines that were not given yet, with their offsets, until a time of the monotonic clock.

        At least one is given where there is one. Call `look` before.
        """
        self.complete = False
        try:
            stream = self.path.open("rb")
        except OSError:
            self.complete = True
            return
        with stream:
            stream.seek(self.offset)
            while True:
                line = stream.readline()
                if not line.endswith(b"\n"):
                    self.complete = True
                    return
                start, self.offset = self.offset, self.offset + len(line)
                self._anchor = line[-ANCHOR:]
                yield start, line
                if time.monotonic() > until:
                    return

    def _anchored(self, stream: BinaryIO) -> bool:
        stream.seek(self.offset - len(self._anchor))
        return stream.read(len(self._anchor)) == self._anchor

    def _restart(self, identity: tuple[int, int] | None) -> None:
        if self._file is not None:
            self.generation += 1
        self._file = identity
        self.offset = 0
        self._anchor = b""


def read_at(path: Path, offset: int, size: int) -> bytes:
    """`size` bytes from `offset` on; fewer where the file ends before."""
    with path.open("rb") as stream:
        stream.seek(offset)
        return stream.read(size)
