"""The accounting equation: every rollout that was started is accounted for.

started = scored + stopped by policy + lost to infrastructure (by boundary) + cancelled
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypedDict

from turnwise.episode import Episode


class LedgerRow(TypedDict):
    """A ledger as it stands in `metrics.jsonl`."""

    started: int
    finished: int
    stopped: dict[str, int]
    lost: dict[str, int]
    cancelled: int


class LedgerImbalance(AssertionError):
    """A rollout was started and never accounted for, or accounted for twice."""


@dataclass
class Ledger:
    """Counts rollouts by how they ended. `start` and `settle` each take every rollout once."""

    _open: set[str] = field(default_factory=set)
    _settled: set[str] = field(default_factory=set)
    _finished: int = 0
    _stopped: Counter[str] = field(default_factory=Counter)
    _lost: Counter[str] = field(default_factory=Counter)
    _cancelled: int = 0

    def start(self, rollout_id: str) -> None:
        """Opens the account of one rollout.

        Raises:
            LedgerImbalance: if it was opened before.
        """
        if rollout_id in self._open or rollout_id in self._settled:
            raise LedgerImbalance(f"rollout {rollout_id!r} was started twice")
        self._open.add(rollout_id)

    def settle(self, episode: Episode) -> None:
        """Closes the account of the episode's rollout under its ending.

        Raises:
            LedgerImbalance: if it is not open.
        """
        if episode.rollout_id not in self._open:
            state = "ended twice" if episode.rollout_id in self._settled else "was never started"
            raise LedgerImbalance(f"rollout {episode.rollout_id!r} {state}")
        self._open.remove(episode.rollout_id)
        self._settled.add(episode.rollout_id)
        ending = episode.ending
        if ending.kind == "finished":
            self._finished += 1
        elif ending.limit is not None:
            self._stopped[ending.limit.value] += 1
        elif ending.boundary is not None:
            self._lost[ending.boundary.value] += 1
        else:
            self._cancelled += 1

    @property
    def started(self) -> int:
        return len(self._open) + len(self._settled)

    @property
    def scored(self) -> int:
        """Rollouts that carry a score: finished or stopped by the policy's own doing."""
        return self._finished + self._stopped.total()

    @property
    def coverage(self) -> float:
        """Scored rollouts over started ones; NaN before the first start."""
        return self.scored / self.started if self.started else float("nan")

    def check(self) -> None:
        """Asserts the equation.

        Raises:
            LedgerImbalance: naming the rollouts that are still open.
        """
        if self._open:
            names = ", ".join(sorted(self._open)[:5])
            raise LedgerImbalance(
                f"{len(self._open)} of {self.started} rollouts have no ending: {names}"
            )
        settled = self.scored + self._lost.total() + self._cancelled
        if settled != self.started:
            raise LedgerImbalance(f"started {self.started} rollouts, accounted for {settled}")

    def as_dict(self) -> LedgerRow:
        return {
            "started": self.started,
            "finished": self._finished,
            "stopped": dict(sorted(self._stopped.items())),
            "lost": dict(sorted(self._lost.items())),
            "cancelled": self._cancelled,
        }

    def equation(self) -> str:
        """The equation in one line, for people."""
        lost = ", ".join(f"{name} {count}" for name, count in sorted(self._lost.items()))
        return (
            f"{self.started} started = {self._finished} finished"
            f" + {self._stopped.total()} stopped + {self._lost.total()} lost"
            f"{f' ({lost})' if lost else ''} + {self._cancelled} cancelled"
        )
