"""When a run that goes wrong ends, and what it says: the same reasons on both backends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from turnwise.command import StopRun
from turnwise.episode import Ending
from turnwise.group import Drop, Group

MIN_LOST_GROUPS = 16


class Ended(Protocol):
    """How an episode ended; an `Episode` and a row of an evaluation are one."""

    @property
    def ending(self) -> Ending: ...
    @property
    def score(self) -> float | None: ...


class LostGroups:
    """Ends a run of which group after group is lost: nothing would be learnt from it any more.

    Attributes:
        limit: Groups in a row that lost too many of their episodes.
    """

    def __init__(self, batch: int) -> None:
        """
        Args:
            batch: Groups of a step.
        """
        self.limit = max(MIN_LOST_GROUPS, 2 * batch)
        self._lost = 0

    def count(self, drop: Drop | None, members: Sequence[Mapping[str, str | None]]) -> None:
        """Takes a group in.

        Args:
            drop: Why it is not trained on.
            members: Of each member the `boundary` where it was lost and the `error`, or None.

        Raises:
            StopRun: as many as the limit in a row were lost.
        """
        self._lost = self._lost + 1 if drop is Drop.TOO_FEW_SCORED else 0
        if self._lost < self.limit:
            return
        raise StopRun(
            f"{self._lost} groups in a row lost too many of their episodes. {_errors(members)}"
        )

    def count_groups(self, groups: Iterable[Group]) -> None:
        """Takes the groups of a step in. Raises StopRun, see `count`."""
        for group in groups:
            self.count(group.drop, [_loss(episode) for episode in group.episodes])


def nothing_scored(episodes: Sequence[Ended]) -> str:
    """Why none of these episodes has a score: the last error of each boundary; "" if one has."""
    if not episodes or any(episode.score is not None for episode in episodes):
        return ""
    return f"none of {len(episodes)} episodes was scored. {_errors(map(_loss, episodes))}"


def _loss(episode: Ended) -> Mapping[str, str | None]:
    return {"boundary": episode.ending.boundary, "error": episode.ending.error}


def _errors(members: Iterable[Mapping[str, str | None]]) -> str:
    """The last error of each boundary."""
    last = {str(one["boundary"]): one["error"] for one in members if one.get("boundary")}
    if not last:
        return "They were cancelled."
    return "; ".join(f"lost to {boundary}: {error}" for boundary, error in last.items())
