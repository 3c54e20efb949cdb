"""Which row of the key-value cache belongs to which session, and what it can reuse.

Bookkeeping on NumPy alone; the caller moves the cache to match. A row is active (its turn is being
computed), idle (its session waits for an environment), or free. Any row's valid ids can serve as a
source of a common prefix, so a group's prompts are computed once.

Shapes: B rows, T context.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORTH_WAITING = 16
"""Tokens that a row still being filled must save before another waits for it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A row given to a turn.

    Attributes:
        row: The row, now active.
        kept: Leading positions of the row that stay valid.
        source: Another row to copy positions [kept, start) from; None if there is none.
        start: Positions that need no computing once the copy is made; less than the prompt.
        wave: 0 if the source is valid now, else 1 + the wave in which it is filled.
    """

    row: int
    kept: int
    source: int | None
    start: int
    wave: int


class RowTable:
    """Rows, their ids and their owners.

    Attributes:
        ids: int32[B, T]: the tokens of each row; valid up to `length`, and one more while active:
            the token that was sampled and not yet computed.
        length: int64[B]: positions whose keys and values are in the cache.
        active: bool[B].
    """

    def __init__(self, rows: int, context: int) -> None:
        self.ids = np.zeros((rows, context), dtype=np.int32)
        self.length = np.zeros(rows, dtype=np.int64)
        self.active = np.zeros(rows, dtype=np.bool_)
        self._reach = np.zeros(rows, dtype=np.int64)
        self._wave = np.zeros(rows, dtype=np.int64)
        self._used = np.zeros(rows, dtype=np.int64)
        self._clock = 0
        self._session: list[str | None] = [None] * rows
        self._row: dict[str, int] = {}

    def claim(self, session: str, prompt: NDArray[np.int32]) -> Claim | None:
        """Finds a row for a turn; None if every row is active.

        The session's own row, else the longest unused one that no session owns, else that of the
        session that has been idle longest.
        """
        row = self._row.get(session)
        if row is None:
            row = self._longest_unused()
            if row is None:
                return None
            self._disown(row)
            self._session[row] = session
            self._row[session] = row
        assert not self.active[row], f"session {session!r} has a turn under way"
        common = self._common(prompt)
        kept = int(min(common[row], self.length[row]))
        source, start, wave = None, kept, 0
        common[row] = -1
        valid = np.minimum(common, self.length)
        best = int(valid.argmax())
        if valid[best] > start:
            source, start = best, int(valid[best])
        best = int(common.argmax())
        if common[best] >= start + WORTH_WAITING:
            source, start, wave = best, int(common[best]), int(self._wave[best]) + 1
        self.active[row] = True
        self.length[row] = kept
        self.ids[row, : len(prompt)] = prompt
        self._reach[row], self._wave[row] = len(prompt), wave
        return Claim(row, kept, source, start, wave)

    def computed(self, row: int, length: int) -> None:
        """Says that the first `length` positions of a claimed row are in the cache."""
        self.length[row] = length

    def idle(self, row: int) -> None:
        """Ends the turn of a row; its session keeps it until another needs it more."""
        self.active[row] = False
        self._reach[row] = self.length[row]
        self._clock += 1
        self._used[row] = self._clock

    def release(self, session: str) -> None:
        """Forgets a session; its ids still serve as a source until the row is claimed."""
        row = self._row.pop(session, None)
        if row is not None:
            self._session[row] = None

    def clear(self) -> None:
        """Forgets everything: the state equals that of a new table."""
        self.length[:] = self._reach[:] = self._wave[:] = self._used[:] = 0
        self.active[:] = False
        self._clock = 0
        self._session = [None] * len(self._session)
        self._row.clear()

    def moves(self) -> list[tuple[int, int, int]]:
        """Exchanges rows so that the active ones come first.

        Returns:
            (row, other, length) per exchange made: the cache must follow, for `length` positions.
        """
        count = int(self.active.sum())
        holes = np.flatnonzero(~self.active[:count])
        strays = count + np.flatnonzero(self.active[count:])
        made = []
        for hole, stray in zip(holes.tolist(), strays.tolist(), strict=True):
            made.append((hole, stray, int(self.length[[hole, stray]].max())))
            self._swap(hole, stray)
        return made

    def shared_prefix(self, count: int) -> int:
        """Leading valid ids that rows 0..count-1 have in common."""
        shortest = int(self.length[:count].min())
        alike = (self.ids[:count, :shortest] == self.ids[0, :shortest]).all(axis=0)
        return shortest if alike.all() else int(alike.argmin())

    def _swap(self, one: int, other: int) -> None:
        pair, reverse = [one, other], [other, one]
        for array in (self.ids, self.length, self.active, self._reach, self._wave, self._used):
            array[pair] = array[reverse]
        sessions = self._session
        sessions[one], sessions[other] = sessions[other], sessions[one]
        for row in pair:
            session = sessions[row]
            if session is not None:
                self._row[session] = row

    def _longest_unused(self) -> int | None:
        owned = np.array([session is not None for session in self._session])
        order = np.where(
            self.active, np.iinfo(np.int64).max, self._used + owned * (self._clock + 1)
        )
        row = int(order.argmin())
        return None if self.active[row] else row

    def _disown(self, row: int) -> None:
        session = self._session[row]
        if session is not None:
            del self._row[session]

    def _common(self, prompt: NDArray[np.int32]) -> NDArray[np.int64]:
        """int64[B]: leading ids in common with each row, the prompt's last token excepted."""
        size = len(prompt) - 1
        if size == 0:
            return np.zeros(len(self.length), dtype=np.int64)
        differ = self.ids[:, :size] != prompt[:size]
        first = np.where(differ.any(axis=1), differ.argmax(axis=1), size)
        return np.minimum(first, np.where(self.active, self._reach, self.length))
