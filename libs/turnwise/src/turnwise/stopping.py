"""When a run that goes wrong ends, and what it says: the same reasons on both backends.

| reason | on this machine | on a cluster |
|---|---|---|
| engine and trainer differ in log-probs | largest of a step's tokens, before the update | mean |
| a loss or gradient is not finite | before the update | the trainer's row |
| a ledger does not balance | at the step | the hooks, and the row |
| group after group is lost | after the step | slime's filter |
| nothing is scored | after the evaluation | the row of a step or an evaluation |
| no first prompt fits the context | after the evaluation | |
| no progress | | no row for many times the usual time |

On this machine the loop asks where it knows the numbers; on a cluster the hooks ask, and the
launcher holds each row of metrics.jsonl against the table (`RowWatch`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Protocol

from pydantic import Field

from turnwise.command import StopRun
from turnwise.config import Config
from turnwise.episode import Ending, Episode, Limit
from turnwise.group import Drop, Group
from turnwise.ledger import LedgerRow
from turnwise.run.metrics import EvalRow, MetricsRow, SlimeRow, TrainRow

MIN_LOST_GROUPS = 16
KNOWN_STEPS = 3
"""Steps whose times must be known before one can be late."""
MIN_PATIENCE_S = 1800.0
"""No run is ended for standing still sooner: an evaluation or a checkpoint may take so long."""


LOGPROB_DIFF = "train/train_rollout_logprob_abs_diff"
UPDATE = ("train/loss", "train/pg_loss", "train/kl_loss", "train/grad_norm", LOGPROB_DIFF)
"""slime's numbers of an update without which there is none."""


class StopLimits(Config):
    """[stop]: where a run on a cluster ends because it goes wrong."""

    max_logprob_diff: float = Field(default=0.1, gt=0)
    """Mean difference of the engine's and the trainer's log-probs over a step's trained tokens.
    bf16 on both sides gives 0.0001 to 0.001, mixtures of experts more."""
    patience: float = Field(default=20.0, gt=1)
    """Times the median time of a step without any new row, half an hour at least."""


def logprobs_differ(
    difference: float | None, limit: float, what: str, flag: str = "--max-logprob-diff"
) -> str:
    """Why a run must end whose engine and trainer differ so; "" if they don't.

    Args:
        what: That differs: `the log-prob of a sampled token`.
        flag: That sets the limit.
    """
    if difference is None or difference <= limit:
        return ""
    return (
        f"engine and trainer differ by {difference:.3g} in {what} ({flag} {limit:g}):"
        " the two do not compute the same policy"
    )


def not_finite(numbers: Mapping[str, float | None]) -> str:
    """Why no update can be made of these numbers; "" if all are finite. None is not, as in JSON."""
    bad = {n: v for n, v in numbers.items() if v is None or not math.isfinite(v)}
    if not bad:
        return ""
    said = ", ".join(f"{n} {'NaN or infinite' if v is None else v}" for n, v in bad.items())
    return f"the update is not finite: {said}"


def does_not_balance(ledger: LedgerRow) -> str:
    """Why these accounts can't be right; "" if they balance."""
    stopped, lost = sum(ledger["stopped"].values()), sum(ledger["lost"].values())
    if ledger["started"] == ledger["finished"] + stopped + lost + ledger["cancelled"]:
        return ""
    return (
        f"the ledger does not balance: {ledger['started']} started, but {ledger['finished']}"
        f" finished + {stopped} stopped + {lost} lost + {ledger['cancelled']} cancelled"
    )


def _logprobs(row: MetricsRow, limits: StopLimits) -> str:
    if not isinstance(row, SlimeRow):
        return ""
    found = row.numbers.get(LOGPROB_DIFF)
    what = "the log-probs of the trained tokens, on average"
    return logprobs_differ(found, limits.max_logprob_diff, what)


def _finite(row: MetricsRow, limits: StopLimits) -> str:
    if not isinstance(row, SlimeRow):
        return ""
    return not_finite({name: row.numbers[name] for name in UPDATE if name in row.numbers})


def _balance(row: MetricsRow, limits: StopLimits) -> str:
    return does_not_balance(row.ledger) if isinstance(row, (EvalRow, TrainRow)) else ""


def _scored(row: MetricsRow, limits: StopLimits) -> str:
    if not isinstance(row, (EvalRow, TrainRow)) or not sum(row.ledger["lost"].values()):
        return ""
    scored = row.ledger["finished"] + sum(row.ledger["stopped"].values())
    if scored:
        return ""
    lost = ", ".join(f"{count} lost to {at}" for at, count in row.ledger["lost"].items())
    return f"none of {row.ledger['started']} episodes was scored: {lost}"


REASONS: tuple[Callable[[MetricsRow, StopLimits], str], ...] = (
    _logprobs,
    _finite,
    _balance,
    _scored,
)


class RowWatch:
    """Holds the rows of a run against the reasons, and the time between them."""

    def __init__(self, limits: StopLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._last_row = self._last_step = clock()
        self._steps: list[float] = []

    def take(self, row: MetricsRow) -> None:
        """Takes the next row.

        Raises:
            StopRun: it shows that the run goes wrong.
        """
        self._last_row = self._clock()
        if isinstance(row, TrainRow):
            self._steps.append(self._last_row - self._last_step)
            self._last_step = self._last_row
        for reason in REASONS:
            if said := reason(row, self._limits):
                raise StopRun(f"{row.kind} row of step {row.step}: {said}")

    def excuse(self) -> None:
        """Says that the run stands still because somebody paused it."""
        self._last_row = self._last_step = self._clock()

    def wait(self) -> None:
        """Says that there is no new row.

        Raises:
            StopRun: for too long.
        """
        # The first step has the start in it.
        steps = self._steps[1:]
        if len(steps) < KNOWN_STEPS:
            return
        waited, usual = self._clock() - self._last_row, median(steps)
        if waited > max(MIN_PATIENCE_S, self._limits.patience * usual):
            raise StopRun(
                f"no progress: no new row for {waited:.0f} s, where a step takes {usual:.0f} s"
                f" (--patience {self._limits.patience:g})"
            )


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


def first_prompt(episode: Episode) -> dict[str, int] | None:
    """`needed` and `limit` in tokens, where the episode's first prompt did not fit the context, so
    that its score says nothing of the policy; 0 where an endpoint does not say."""
    found: dict[str, int] | None = episode.info.get("first_prompt")
    return found if episode.ending.limit is Limit.CONTEXT else None


def never_sampled(prompts: Sequence[Mapping[str, int] | None], flag: str) -> str:
    """How many episodes never sampled a token, and what to do; "" if all did.

    Args:
        prompts: Of every episode what `first_prompt` says.
        flag: That sets the context.
    """
    found = [one for one in prompts if one is not None]
    if not found:
        return ""
    said = f"{len(found)} of {len(prompts)} episodes never sampled a token: their first prompt"
    limit = max(one["limit"] for one in found)
    if not limit:
        return f"{said} exceeds the endpoint's context; serve the policy with a longer one"
    least, most = min(one["needed"] for one in found), max(one["needed"] for one in found)
    needs = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return (
        f"{said} needs {needs} tokens, more than the context of {limit:,}; raise {flag}, or take"
        " a policy with more positions"
    )


def _loss(episode: Ended) -> Mapping[str, str | None]:
    return {"boundary": episode.ending.boundary, "error": episode.ending.error}


def _errors(members: Iterable[Mapping[str, str | None]]) -> str:
    """The last error of each boundary."""
    last = {str(one["boundary"]): one["error"] for one in members if one.get("boundary")}
    if not last:
        return "They were cancelled."
    return "; ".join(f"lost to {boundary}: {error}" for boundary, error in last.items())
