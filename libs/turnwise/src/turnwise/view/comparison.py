"""Runs beside each other: their curves, the tasks that both have, the options that differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

from turnwise.report.load import RunData, readable
from turnwise.report.plots import Chart, Point, overlay
from turnwise.run.folder import flat
from turnwise.run.metrics import EvalRow, TrainRow
from turnwise.trials import Estimate, paired_difference

Axis = Literal["training step", "seconds"]
Place = Mapping[tuple[str, int], float]
"""Where on the axis a row of a kind and a step stands."""
TRAINING: Mapping[str, Callable[[TrainRow], float | None]] = {
    "Reward in training": lambda row: row.reward_mean,
    "Loss": lambda row: row.loss,
    "Entropy": lambda row: row.entropy,
    "KL": lambda row: row.kl or None,
    "Clipped tokens": lambda row: row.clip_fraction,
    "Gradient norm": lambda row: row.grad_norm,
    "Engine-trainer gap": lambda row: row.max_logprob_diff,
    "Groups trained on": lambda row: row.groups_kept / row.groups if row.groups else None,
    "Sampled tokens per second": lambda row: row.tokens_per_s,
}
LOGARITHMIC = ("Engine-trainer gap",)


def compare(runs: Sequence[RunData], axis: Axis) -> dict[str, Any]:
    """What the page shows of two or more runs; the first is what the others are held against."""
    return {
        "runs": [run.name for run in runs],
        "charts": [
            {"title": one.title, "label": one.label, "note": one.note, "data": one.data}
            for one in _charts(runs, axis)
            if one is not None
        ],
        "differences": [_difference(runs[0], other) for other in runs[1:]],
        "options": _options(runs),
    }


def _charts(runs: Sequence[RunData], axis: Axis) -> Iterator[Chart | None]:
    """Evaluations, training, and of slime's numbers those of the trainer."""
    places = [_elapsed(run) if axis == "seconds" else {} for run in runs]

    def points(
        rows: Sequence[Any], get: Callable[[Any], float | None], place: Place
    ) -> list[Point]:
        values = [(place.get((row.kind, row.step), row.step), get(row)) for row in rows]
        return [Point(at, value) for at, value in values if value is not None]

    for dataset in dict.fromkeys(row.dataset for run in runs for row in run.evals):
        curves = {
            run.name: points(_of(run, dataset), lambda row: row.reward_mean, place)
            for run, place in zip(runs, places, strict=True)
        }
        title = "Score of the evaluations" + (f": {dataset}" if dataset else "")
        yield overlay(title, curves, axis=axis, form="percent")
    for title, get in TRAINING.items():
        curves = {
            run.name: points(run.trains, get, place)
            for run, place in zip(runs, places, strict=True)
        }
        yield overlay(title, curves, axis=axis, log=title in LOGARITHMIC)
    names = dict.fromkeys(name for run in runs for name in run.slime if name.startswith("train/"))
    for name in names:
        if name == "train/step":
            continue
        curves = {
            run.name: [
                Point(place.get(("train", int(step)), step), value)
                for step, value in run.slime.get(name, ())
            ]
            for run, place in zip(runs, places, strict=True)
        }
        yield overlay(name, curves, axis=axis)


def _of(run: RunData, dataset: str) -> list[EvalRow]:
    return [row for row in run.evals if row.dataset == dataset]


def _elapsed(run: RunData) -> Place:
    """Seconds of work until each row was written, by its kind and step."""

    def spent(row: TrainRow | EvalRow) -> float:
        return row.eval_s if isinstance(row, EvalRow) else row.rollout_s + (row.train_s or 0.0)

    rows = sorted(run.rows, key=lambda row: (row.step, row.kind == "eval"))
    times = accumulate(spent(row) for row in rows)
    return {(row.kind, row.step): at for row, at in zip(rows, times, strict=True)}


def _difference(first: RunData, other: RunData) -> dict[str, Any]:
    """The last evaluations, paired over the tasks that both scored, by data set."""
    found = []
    for dataset in dict.fromkeys(row.dataset for row in first.evals):
        ours, theirs = _last_scores(first, dataset), _last_scores(other, dataset)
        both = sorted(ours.keys() & theirs.keys())
        if not both:
            continue
        estimate = paired_difference(
            {task: ours[task] for task in both}, {task: theirs[task] for task in both}
        )
        only = len(ours.keys() ^ theirs.keys())
        found.append(
            {
                "dataset": dataset,
                "text": _in_words(estimate),
                "only_one": only,
            }
        )
    return {"run": other.name, "against": first.name, "found": found}


def _last_scores(run: RunData, dataset: str) -> Mapping[str, Sequence[float | None]]:
    rows = _of(run, dataset)
    return rows[-1].scores if rows else {}


def _in_words(estimate: Estimate) -> str:
    if math.isnan(estimate.mean):
        return "no task was scored in both"
    error = ""
    if estimate.stderr > 0:
        errors = estimate.mean / estimate.stderr
        error = f" ± {100 * estimate.stderr:.1f} points ({errors:+.1f} standard errors)"
    tasks = f"paired over {estimate.tasks} task{'s' * (estimate.tasks != 1)}"
    return f"{100 * estimate.mean:+.1f}{error or ' points'}, {tasks}"


def _options(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Options whose values differ, with each run's; empty where a run has none."""
    configs = [{name: readable(value) for name, value in flat(run.config).items()} for run in runs]
    rows = []
    for name in dict.fromkeys(name for one in configs for name in one):
        values = [one.get(name, "") for one in configs]
        if len(set(values)) > 1:
            rows.append((name, values))
    return rows
