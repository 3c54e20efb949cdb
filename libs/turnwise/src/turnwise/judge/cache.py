"""Verdicts of a judge model, each asked for once.

One JSON line a verdict: `key`, `correct`, and for people `judge`, `truth`, `answer` (its end) and
`reply`. Of two lines with one key the first counts. One process writes to a file at a time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from turnwise.config import ConfigError
from turnwise.run.jsonl import append_row, read_rows

MAX_ENTRIES = 200_000
"""Beyond it the verdict that was used longest ago leaves the memory, though not the file."""


class VerdictCache:
    """Verdicts by key, in memory and, if asked for, in a file.

    Attributes:
        path: The file; None keeps them in memory alone.
        hits: Verdicts that were there.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Raises ConfigError naming file and line of what is no recorded verdict."""
        self.path = path
        self.hits = 0
        self._verdicts: OrderedDict[str, bool] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        for number, row in enumerate(read_rows(path) if path is not None else (), start=1):
            key, correct = row.get("key"), row.get("correct")
            if not (isinstance(key, str) and isinstance(correct, bool)):
                raise ConfigError(
                    f"{path}:{number}: not a recorded verdict (key and correct are needed); is "
                    "this another file?"
                )
            if key not in self._verdicts:
                self._keep(key, correct)

    def __len__(self) -> int:
        return len(self._verdicts)

    async def get(
        self, key: str, ask: Callable[[], Awaitable[tuple[bool, dict[str, Any]]]]
    ) -> bool:
        """The verdict of `key`, else what `ask` gives, which is then kept; once per key.

        Args:
            key: Names the verdict.
            ask: Gives it with what else its line says; what it raises passes through and keeps
                nothing.

        Raises:
            RunError: the line can't be written.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if key in self._verdicts:
                self.hits += 1
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
            correct, row = await ask()
            if self.path is not None:
                append_row(self.path, {"key": key, "correct": correct, **row})
            self._keep(key, correct)
            return correct

    def _keep(self, key: str, correct: bool) -> None:
        self._verdicts[key] = correct
        while len(self._verdicts) > MAX_ENTRIES:
            self._verdicts.popitem(last=False)
