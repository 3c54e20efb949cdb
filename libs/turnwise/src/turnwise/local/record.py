"""Turns what a step or an evaluation did into rows, traces and lines on the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from turnwise.episode import Episode
from turnwise.local.experiment import Experiment
from turnwise.local.options import TrainOptions
from turnwise.local.trainer import EvalResult, StepResult, Table, drops
from turnwise.run.folder import RunFolder
from turnwise.run.metrics import (
    EvalRow,
    TrainRow,
    as_row,
    compared_numbers,
    metric_means,
    read_metrics,
)
from turnwise.run.progress import ProgressDisplay
from turnwise.run.summary import (
    Summary,
    SummaryTable,
    changes,
    lost_trials,
    percent,
    write_summary,
)
from turnwise.run.traces import Trained, choose_eval_traces, choose_traces, trace_row
from turnwise.run.trackers import Trackers
from turnwise.trials import mean_score, paired_difference


class Recorder:
    """Writes a run's files as it goes."""

    def __init__(
        self,
        options: TrainOptions,
        experiment: Experiment[Any],
        tokenizer: Any,
        folder: RunFolder,
        done: int,
        version_shift: int = 0,
    ) -> None:
        """
        Args:
            done: Training steps that the run had made before.
            version_shift: As of `trace_row`.

        Raises:
            ConfigError: naming a line of metrics.jsonl that is no row of a run.
        """
        self._options, self._tokenizer, self._folder = options, tokenizer, folder
        self._experiment = experiment
        self.progress = ProgressDisplay(options.num_rollout, done=done)
        self._version_shift = version_shift
        self._rows = read_metrics(folder.metrics)
        self._trackers = Trackers(
            options.track,
            folder=folder,
            method=experiment.name,
            config=folder.read_config(),
            say=self.progress.say,
        )

    def evaluation(self, step: int) -> Table | None:
        """Scores of the evaluation after `step`, if the run has made it."""
        row = self._evaluation(step)
        return None if row is None else row.scores

    def _evaluation(self, step: int) -> EvalRow | None:
        for row in self._rows:
            if isinstance(row, EvalRow) and row.step == step:
                return row
        return None

    def evaluated(self, step: int, result: EvalResult) -> None:
        row = EvalRow(
            step=step,
            reward_mean=result.estimate.mean,
            reward_stderr=result.estimate.stderr,
            coverage=result.ledger.coverage,
            ledger=result.ledger.as_dict(),
            endings=endings(result.episodes),
            metrics=metric_means(episode.metrics for episode in result.episodes),
            baselines=dict(self._experiment.baselines),
            services=dict(self._experiment.method.players()),
            service_totals=dict(self._experiment.method.metrics()),
            eval_s=result.eval_s,
            scores={task_id: list(scores) for task_id, scores in result.table.items()},
            compared=compared_numbers(
                self._experiment.method.compared,
                ((one.group_id, one.score, one.metrics) for one in result.episodes),
            ),
            pictures=list(self._experiment.method.pictures()),
        )
        self._append(row, choose_eval_traces(result.episodes))
        self.progress.evaluated(row, result.ledger.equation())

    def stepped(self, step: int, result: StepResult) -> None:
        scores = np.array([e.score for e in result.episodes if e.score is not None])
        group_means = np.array(
            [np.nanmean(group.scores_G) for group in result.groups if _any_scored(group.scores_G)]
        )
        row = TrainRow(
            step=step,
            reward_mean=_mean(scores),
            reward_stderr=_stderr(group_means),
            coverage=result.ledger.coverage,
            ledger=result.ledger.as_dict(),
            endings=endings(result.episodes),
            metrics=metric_means(episode.metrics for episode in result.episodes),
            services=dict(self._experiment.method.players()),
            service_totals=dict(self._experiment.method.metrics()),
            loss=_mean_update(result, "loss"),
            kl=_mean_update(result, "kl"),
            entropy=_mean_update(result, "entropy"),
            clip_fraction=_mean_update(result, "clip_fraction"),
            grad_norm=_mean_update(result, "grad_norm"),
            max_logprob_diff=result.max_logprob_diff if result.updates else None,
            mean_logprob_diff=result.mean_logprob_diff if result.updates else None,
            tis_mean=_mean_update(result, "tis_mean"),
            tis_clip_fraction=_mean_update(result, "tis_clip_fraction"),
            trained_tokens=sum(update.trained_tokens for update in result.updates),
            sampled_tokens=result.sampled_tokens,
            tokens_per_s=result.sampled_tokens / result.rollout_s,
            groups=len(result.groups),
            groups_kept=sum(group.drop is None for group in result.groups),
            groups_dropped=drops(result.groups),
            rollout_s=result.rollout_s,
            engine_busy_s=result.engine_busy_s,
            waiting_s=result.waiting_s,
            train_s=result.train_s,
            loop_lag_p50_ms=1e3 * result.lag.p50_s,
            loop_lag_max_ms=1e3 * result.lag.max_s,
            peak_memory_bytes=result.peak_memory,
            predicted_memory_bytes=result.predicted_memory,
        )
        self._append(row, choose_traces(result.episodes), result.trained)
        self.progress.stepped(row, result.ledger.equation())

    def summarise(
        self,
        before: Table | None,
        after: Table,
        curves: Mapping[str, Mapping[str, EvalResult]] = MappingProxyType({}),
    ) -> Summary:
        """Compares two evaluations and writes summary.json; no verdict without the first.

        Args:
            curves: What was played once at the end, by what the points differ in, then by point.
        """
        before = {task: [] for task in after} if before is None else before
        scores = [score for table in (before, after) for row in table.values() for score in row]
        first, last = self._evaluation(0), self._evaluation(self._options.num_rollout)
        summary = Summary(
            method=self._experiment.name,
            before=mean_score(before),
            after=mean_score(after),
            difference=paired_difference(before, after),
            baselines=dict(self._experiment.baselines),
            trials=self._options.n_samples_per_eval_prompt,
            steps=self._options.num_rollout,
            seed=self._options.seed,
            services=dict(self._experiment.method.players()),
            coverage=sum(score is not None for score in scores) / len(scores),
            claim=self._experiment.claim,
            split=self._experiment.split,
            compared=changes(first.compared, last.compared) if first and last else {},
            tables=tuple(_curve(name, points) for name, points in curves.items()),
            tasks=len(after),
            lost=lost_trials(first, last),
        )
        write_summary(self._folder, summary)
        return summary

    def _append(
        self,
        row: EvalRow | TrainRow,
        chosen: Sequence[tuple[str, Episode]],
        trained: Trained = MappingProxyType({}),
    ) -> None:
        traces = [
            trace_row(
                episode,
                self._tokenizer,
                step=row.step,
                kind=row.kind,
                why=why,
                version_shift=self._version_shift,
                trained=trained,
            )
            for why, episode in chosen
        ]
        self._folder.append(as_row(row), traces)
        self._rows.append(row)
        self._trackers.log(as_row(row))

    def close(self) -> None:
        """Ends what the rows are sent to."""
        self._trackers.close()


def _curve(name: str, points: Mapping[str, EvalResult]) -> SummaryTable:
    return SummaryTable(
        title=f"After training, by {name}",
        before=("Each task once; ± is one standard error over tasks.",),
        head=(name, "score", "tasks", "lost"),
        rows=tuple(
            (
                point,
                percent(found.estimate),
                f"{len(found.table)}",
                f"{sum(episode.score is None for episode in found.episodes)}",
            )
            for point, found in points.items()
        ),
    )


def endings(episodes: Sequence[Episode]) -> dict[str, int]:
    """Episodes by the label of their ending, most frequent first."""
    return dict(Counter(episode.ending.label for episode in episodes).most_common())


def _mean_update(result: StepResult, name: str) -> float | None:
    values = [getattr(update, name) for update in result.updates]
    if not values or None in values:
        return None
    return float(np.average(values, weights=[u.trained_tokens for u in result.updates]))


def _mean(values: np.ndarray[Any, Any]) -> float:
    return float(values.mean()) if values.size else float("nan")


def _stderr(values: np.ndarray[Any, Any]) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else float("nan")


def _any_scored(scores_G: np.ndarray[Any, Any]) -> bool:
    return not bool(np.isnan(scores_G).all())
