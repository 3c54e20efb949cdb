"""Accounts of the rollouts of one process, over the period from one log of slime's to the next.

slime shows its log hooks only the samples it trains on; what a filter dropped and what an abort
cut off is accounted for here. Training and evaluation have accounts of their own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from turnwise.episode import Ending, Episode
from turnwise.group import Drop
from turnwise.ledger import Ledger, LedgerImbalance
from turnwise.local.lag import LagMonitor
from turnwise.run.traces import TraceChoice
from turnwise.stopping import LostGroups


@dataclass(slots=True)
class Ended:
    """What an account needs of an episode that ended `at` a time of `perf_counter`; the tokens are
    not kept."""

    group_id: str
    ending: Ending
    score: float | None
    wall_s: float
    metrics: dict[str, float]
    at: float


@dataclass(frozen=True, slots=True)
class Period:
    """What was started and what ended since the period before.

    Attributes:
        ledger: Of the episodes that ended.
        ended: The same episodes.
        carried: Episodes under way when the period began.
        started: Episodes started since.
        in_flight: Episodes under way now.
        dropped: Groups that the filter left out, by reason.
        traces: Episodes to be kept whole, each with the reason.
        seconds: From the first start to the end of the period; 0 without one.
        lag_p50_s, lag_max_s: How late the event loop ran while any episode was under way.
    """

    ledger: Ledger
    ended: tuple[Ended, ...]
    carried: int
    started: int
    in_flight: int
    dropped: dict[str, int]
    traces: Sequence[tuple[str, Episode]]
    seconds: float
    lag_p50_s: float
    lag_max_s: float

    def check(self) -> None:
        """
        Raises:
            LedgerImbalance: an episode was started and neither ended nor is under way.
        """
        self.ledger.check()
        if self.carried + self.started != self.ledger.started + self.in_flight:
            raise LedgerImbalance(
                f"{self.carried} carried over and {self.started} started, but "
                f"{self.ledger.started} ended and {self.in_flight} under way"
            )

    def equation(self) -> str:
        """The ledger's equation, and what is under way, in one line."""
        more = f"; {self.in_flight} under way" if self.in_flight else ""
        return self.ledger.equation() + more

    def metrics(self) -> dict[str, float]:
        """Numbers for a tracker. Episode metrics are means, parse errors by kind are sums."""
        row = self.ledger.as_dict()
        numbers: dict[str, float] = {
            "started": self.started,
            "in_flight": self.in_flight,
            "finished": row["finished"],
            "cancelled": row["cancelled"],
            "stopped": sum(row["stopped"].values()),
            "lost": sum(row["lost"].values()),
            **{f"stopped/{limit}": count for limit, count in row["stopped"].items()},
            **{f"lost/{boundary}": count for boundary, count in row["lost"].items()},
            "loop_lag_p50_s": self.lag_p50_s,
            "loop_lag_max_s": self.lag_max_s,
        }
        if self.ledger.started:
            numbers["coverage"] = self.ledger.coverage
        scores = [one.score for one in self.ended if one.score is not None]
        if scores:
            numbers["score_mean"] = float(np.mean(scores))
        if len(scores) > 1:
            numbers["score_stderr"] = float(np.std(scores, ddof=1) / np.sqrt(len(scores)))
        return numbers | dict(self._episode_metrics())

    def _episode_metrics(self) -> Iterator[tuple[str, float]]:
        if not self.ended:
            return
        walls = [one.wall_s for one in self.ended]
        yield "episode/wall_s", float(np.mean(walls))
        yield "episode/wall_max_s", max(walls)
        sums: Counter[str] = Counter()
        for one in self.ended:
            sums.update(one.metrics)
        for name, total in sorted(sums.items()):
            summed = name.startswith("parse_errors/")
            yield f"episode/{name}", float(total if summed else total / len(self.ended))


class Accounts:
    """Used from one event loop at a time."""

    def __init__(self, *, spread: bool = False) -> None:
        """
        Args:
            spread: Whether episodes spread over all are kept whole beside the notable ones.
        """
        self._spread = spread
        self._numbers = 0
        self._lost_groups: LostGroups | None = None
        self._open: set[str] = set()
        self._lag: LagMonitor | None = None
        self._began = 0.0
        self._begin_period()

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def account(self, name: str) -> AsyncIterator[str]:
        """Opens an account, gives its unique name, and watches the event loop meanwhile.

        The block must call `settle`; an exception, cancellation above all, settles it as
        cancelled and passes through.
        """
        self._numbers += 1
        rollout_id = f"{name}#{self._numbers}"
        self._started += 1
        self._began = self._began or time.perf_counter()
        if not self._open:
            self._lag = LagMonitor()
            await self._lag.__aenter__()
        self._open.add(rollout_id)
        try:
            yield rollout_id
        except BaseException:
            if rollout_id in self._open:
                self.settle(_cancelled(rollout_id))
            raise
        finally:
            if not self._open and self._lag is not None:
                await self._lag.__aexit__(None, None, None)
                self._lags.append(self._lag)
                self._lag = None

    def settle(self, episode: Episode) -> None:
        """Enters how the episode ended.

        Raises:
            LedgerImbalance: its account is not open.
        """
        if episode.rollout_id not in self._open:
            raise LedgerImbalance(f"rollout {episode.rollout_id!r} has no open account")
        self._open.remove(episode.rollout_id)
        self._ledger.start(episode.rollout_id)
        self._ledger.settle(episode)
        self._ended[episode.rollout_id] = Ended(
            group_id=episode.group_id,
            ending=episode.ending,
            score=episode.score,
            wall_s=episode.wall_s,
            metrics={name: float(value) for name, value in episode.metrics.items()},
            at=time.perf_counter(),
        )
        self._traces.add(episode)

    def rescore(self, rollout_id: str, score: float) -> None:
        """Enters the score that an episode's group gave it; one of an earlier period keeps its."""
        if rollout_id in self._ended:
            self._ended[rollout_id].score = score

    def count_group(
        self, drop: Drop | None, losses: Sequence[Mapping[str, str | None]] | None, *, batch: int
    ) -> None:
        """Counts a group that the filter looked at.

        Args:
            drop: Why it is left out.
            losses: Of each member the `boundary` where it was lost and the `error`, or None. None
                where somebody asked for the task to be dropped, which is nobody's fault.
            batch: Groups of a step.

        Raises:
            StopRun: see `turnwise.stopping.LostGroups`.
        """
        if drop is not None:
            self._dropped[drop.value] += 1
        if losses is None:
            return
        if self._lost_groups is None:
            self._lost_groups = LostGroups(batch)
        self._lost_groups.count(drop, losses)

    def take(self) -> Period:
        """Closes the period; episodes under way are carried over to the next."""
        lags = [*self._lags, *([self._lag.split()] if self._lag is not None else [])]
        period = Period(
            ledger=self._ledger,
            ended=tuple(self._ended.values()),
            carried=self._carried,
            started=self._started,
            in_flight=len(self._open),
            dropped=dict(self._dropped),
            traces=self._traces.chosen(),
            seconds=time.perf_counter() - self._began if self._began else 0.0,
            lag_p50_s=float(np.median([lag.p50_s for lag in lags])) if lags else 0.0,
            lag_max_s=max((lag.max_s for lag in lags), default=0.0),
        )
        self._begin_period()
        return period

    def _begin_period(self) -> None:
        self._ledger = Ledger()
        self._ended: dict[str, Ended] = {}
        self._dropped: Counter[str] = Counter()
        self._traces = TraceChoice(spread=self._spread)
        self._lags: list[LagMonitor] = []
        self._carried = len(self._open)
        self._started = 0
        self._began = time.perf_counter() if self._open else 0.0


TRAIN = Accounts()
EVAL = Accounts(spread=True)


def _cancelled(rollout_id: str) -> Episode:
    return Episode(
        rollout_id=rollout_id,
        group_id="",
        task_id="",
        segments=(),
        ending=Ending.cancelled(),
        score=None,
        transcript=(),
    )
