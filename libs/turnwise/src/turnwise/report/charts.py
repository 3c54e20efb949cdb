"""Which charts the report has, from a read run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from turnwise.report.load import RunData
from turnwise.report.plots import Bar, Chart, Point, curve, overlay, stacked_bars
from turnwise.run.metrics import EvalRow, Picture, TrainRow
from turnwise.run.summary import AnySummary, EvalSummary

MAX_METRICS = 8
"""Charts of what a method counts; the table has all of it."""
MAX_SLIME = 16
"""Charts of slime's own numbers; the table has all of them."""
GPU_NUMBERS = re.compile(
    r"^perf/.*(tflops|tok_per_s|tokens_per_gpu_per_sec|wait_time_ratio|gpu|memory|utili)"
)
"""slime's names of what its GPUs do."""

MAX_EVALS = 2
"""Evaluations of a picture beside the first."""

STAGES = {
    "rollout": "stage-a",
    "training": "stage-b",
    "weight update": "stage-d",
    "evaluation": "stage-c",
}
WAITS = ("stage-b", "stage-a", "stage-c", "stage-d", "muted")
STRENGTHS = (1.0, 0.72, 0.5, 0.34)
"""Of colours of the same kind."""


def evaluation_charts(run: RunData) -> list[Chart]:
    """One for each data set that was evaluated on."""
    charts = [
        _evaluation_chart(name, [row for row in run.evals if row.dataset == name])
        for name in dict.fromkeys(row.dataset for row in run.evals)
    ]
    return [chart for chart in charts if chart is not None]


def _evaluation_chart(dataset: str, rows: Sequence[EvalRow]) -> Chart | None:
    points = _points(rows, lambda row: row.reward_mean, lambda row: row.reward_stderr)
    baselines = next((row.baselines for row in rows if row.baselines), {})
    return curve(
        "Score of the evaluations" + (f": {dataset}" if dataset else ""),
        points,
        color="eval",
        form="percent",
        bounds=(0.0, 1.0) if all(0 <= point.y <= 1 for point in points) else None,
        levels=baselines,
        note="Band: one standard error, clustered by task.",
    )


def part_charts(run: RunData) -> list[Chart]:
    """The first measure over parts that differ in a number, such as a length: `50 documents`."""
    parts = run.summary.parts if isinstance(run.summary, EvalSummary) else {}
    named = [re.fullmatch(r"([\d.]*\d)\s*(.*)", name) for name in parts]
    units = {found[2] for found in named if found is not None}
    if len(named) < 2 or None in named or len(units) > 1 or not all(parts.values()):
        return []
    points = [
        Point(float(found[1]), first.estimate.mean, _known(first.estimate.stderr))
        for found, (first, *_) in zip(named, parts.values(), strict=True)
        if found is not None
    ]
    chart = curve(
        f"{next(iter(parts.values()))[0].name} by {units.pop() or 'part'}",
        sorted(points, key=lambda point: point.x),
        color="eval",
        form="percent",
        bounds=(0.0, 1.0),
        note="Band: one standard error, clustered by task.",
        axis="part",
    )
    return [] if chart is None else [chart]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def picture_charts(run: RunData) -> list[Chart]:
    """What a method has the report set against each other: evaluations and fixed behaviours."""
    charts = []
    last = {row.dataset: row for row in run.evals}
    for dataset, row in last.items():
        for picture in row.pictures:
            rows = [one for one in run.evals if one.dataset == dataset]
            found = _places(picture, rows, run.summary)
            title = picture.title + (f": {dataset}" if dataset else "")
            axis = picture.x.replace("_", " ")
            charts.append(overlay(title, found, axis=f"{axis} of an episode"))
    return [chart for chart in charts if chart is not None]


def _places(
    picture: Picture, rows: Sequence[EvalRow], summary: AnySummary | None
) -> dict[str, list[Point]]:
    """A point each, by name: the first and the last evaluations, and the fixed behaviours."""
    alone = summary.policy if isinstance(summary, EvalSummary) else ""
    shown = [*rows[:1], *rows[1:][-MAX_EVALS:]]
    found = {
        alone or f"after step {row.step}": (means[picture.x].mean, means[picture.y].mean)
        for row in shown
        if (means := row.metrics).keys() >= {picture.x, picture.y}
    }
    return {name: [Point(x, y)] for name, (x, y) in {**found, **picture.points}.items()}


def training_charts(run: RunData) -> list[Chart]:
    rewards = _points(run.trains, lambda row: row.reward_mean, lambda row: row.reward_stderr)
    unit = all(0 <= point.y <= 1 for point in rewards)
    charts = [
        curve(
            "Reward in training",
            rewards,
            color="train",
            bounds=(0.0, 1.0) if unit else None,
            note="Mean of scored rollouts; band: one standard error over prompts.",
        )
    ]

    def single(title: str, get: Callable[[TrainRow], float | None], note: str, **how: Any) -> None:
        charts.append(curve(title, _points(run.trains, get), color="other", note=note, **how))

    single("Loss", lambda row: row.loss, "Of the policy, per optimiser step.")
    single("Entropy", lambda row: row.entropy, "Of the next-token distribution, in nats.")
    if any(row.kl for row in run.trains):
        single("KL", lambda row: row.kl, "From the reference policy (low_var_kl).")
    single("Clipped tokens", lambda row: row.clip_fraction, "Share of tokens with a clipped ratio.")
    single("Gradient norm", lambda row: row.grad_norm, "Before clipping.")
    single(
        "Engine-trainer gap",
        lambda row: row.max_logprob_diff,
        "Largest difference of a sampled token's log-prob.",
        log=True,
    )
    single(
        "Groups trained on",
        lambda row: row.groups_kept / row.groups if row.groups else None,
        "Share of prompts whose rollouts differ in score and are scored.",
        bounds=(0.0, 1.0),
    )
    single("Sampled tokens per second", lambda row: row.tokens_per_s, "During rollouts.")
    single("Event loop lag", lambda row: row.loop_lag_max_ms, "Largest of each step, in ms.")
    return [chart for chart in [*charts, *_metric_charts(run)] if chart is not None]


def gpu_charts(run: RunData) -> list[Chart]:
    """What is known of the GPUs: torch's memory, and of slime's numbers those of its hardware."""
    peak = _points(run.trains, lambda row: _gigabytes(row.peak_memory_bytes))
    expected = next((row.predicted_memory_bytes for row in run.trains[::-1]), None)
    charts = [
        curve(
            "GPU memory, GB",
            peak,
            color="other",
            levels={} if expected is None else {"expected": expected / 1e9},
            note="The most that torch has held since the process began.",
        )
    ]
    for name in sorted(run.slime):
        if GPU_NUMBERS.search(name):
            points = [Point(step, value) for step, value in run.slime[name]]
            charts.append(curve(name, points, color="other"))
    return [chart for chart in charts if chart is not None][:MAX_SLIME]


def _gigabytes(count: int | None) -> float | None:
    return None if count is None else count / 1e9


def slime_charts(run: RunData) -> list[Chart]:
    """slime's own numbers, the trainer's first, under the names that slime has for them."""
    names = sorted(
        (name for name in run.slime if not (name.endswith("/step") or GPU_NUMBERS.search(name))),
        key=lambda name: (not name.startswith("train/"), name.startswith("rollout/turnwise/")),
    )
    charts = []
    for name in names:
        points = [Point(step, value) for step, value in run.slime[name]]
        if len({point.y for point in points}) > 1:
            charts.append(curve(name, points, color="other"))
    return [chart for chart in charts if chart is not None][:MAX_SLIME]


def _metric_charts(run: RunData) -> Iterator[Chart | None]:
    """What most episodes count: the method's own numbers, the first `MAX_METRICS` of them."""
    played = sum(row.ledger["started"] for row in run.trains)
    having: dict[str, int] = {}
    for row in run.trains:
        for name, found in row.metrics.items():
            having[name] = having.get(name, 0) + found.episodes
    common = [name for name, episodes in having.items() if 2 * episodes >= played]
    for name in common[:MAX_METRICS]:
        points = [Point(r.step, r.metrics[name].mean) for r in run.trains if name in r.metrics]
        title = f"{name[:1].upper()}{name[1:].replace('_', ' ')} per episode"
        yield curve(title, points, color="other", note="Mean.")


def ending_chart(run: RunData) -> Chart | None:
    bars = [
        Bar(row.step, {name: float(count) for name, count in row.endings.items()})
        for row in run.trains
    ]
    colors = {
        label: (label.partition(":")[0], STRENGTHS[shade]) for label, shade in _shades(run).items()
    }
    return stacked_bars("Endings per training step", bars, colors)


def time_chart(run: RunData) -> Chart | None:
    found = stage_seconds(run)
    steps = sorted({step for seconds in found.values() for step in seconds})
    bars = [
        Bar(step, {stage: seconds.get(step, 0.0) for stage, seconds in found.items()})
        for step in steps
    ]
    return stacked_bars("Seconds per step", bars, {name: (STAGES[name], 1.0) for name in found})


def stage_seconds(run: RunData) -> dict[str, dict[int, float]]:
    """Seconds by stage and step; the trainer's on slime are among its own numbers."""
    evals: dict[int, float] = {}
    for row in run.evals:
        evals[row.step] = evals.get(row.step, 0.0) + row.eval_s
    trained = {row.step: row.train_s for row in run.trains if row.train_s is not None}
    found = {
        "rollout": {row.step: row.rollout_s for row in run.trains},
        "training": trained or _by_step(run, "perf/train_time"),
        "weight update": _by_step(run, "perf/update_weights_time"),
        "evaluation": evals,
    }
    return {stage: seconds for stage, seconds in found.items() if seconds}


def _by_step(run: RunData, name: str) -> dict[int, float]:
    return {int(step): value for step, value in run.slime.get(name, ())}


def wait_chart(run: RunData) -> Chart | None:
    """What an episode spends its time on: those of its numbers that are seconds."""
    styles = wait_styles(run)
    bars = [
        Bar(row.step, {name: row.metrics[name].mean for name in styles if name in row.metrics})
        for row in run.trains
    ]
    colors = {name: (style, 1.0) for name, style in styles.items()}
    note = "Mean seconds of an episode; many are under way at once."
    return stacked_bars("What episodes wait for", bars, colors, note=note)


def wait_styles(run: RunData) -> dict[str, str]:
    """The numbers of episodes that are seconds, by name, each with a colour."""
    names = dict.fromkeys(n for row in run.trains for n in row.metrics if n.endswith("_s"))
    return {name: WAITS[place % len(WAITS)] for place, name in enumerate(names)}


def _points(
    rows: Sequence[Any],
    get: Callable[[Any], float | None],
    error: Callable[[Any], float | None] = lambda row: None,
) -> tuple[Point, ...]:
    def made() -> Iterator[Point]:
        for row in rows:
            value = get(row)
            if value is not None:
                yield Point(row.step, value, error(row))

    return tuple(made())


def _ending_rank(label: str) -> tuple[int, str]:
    kinds = ("finished", "stopped", "lost", "cancelled")
    kind = label.partition(":")[0]
    return (kinds.index(kind) if kind in kinds else len(kinds), label)


def _shades(run: RunData) -> dict[str, int]:
    """Endings of the run in order, and which strength of its kind's colour each has."""
    labels = {label for row in run.rows for label in row.endings}
    seen: dict[str, int] = {}
    shades = {}
    for label in sorted(labels, key=_ending_rank):
        kind = label.partition(":")[0]
        seen[kind] = seen.get(kind, -1) + 1
        shades[label] = seen[kind] % len(STRENGTHS)
    return shades


def ending_styles(run: RunData) -> dict[str, str]:
    """A colour by kind for every ending of the run; several of a kind differ in strength."""
    return {
        label: f"end-{label.partition(':')[0]} shade-{shade}"
        for label, shade in _shades(run).items()
    }


def percent(value: float) -> str:
    """0.5 as `50%`."""
    return f"{100 * value:.3g}%"


def plain(value: float) -> str:
    """A number with three digits; `2.5e-4` below a thousandth, `12,000` above a thousand."""
    if value != 0 and abs(value) < 1e-3:
        digits, power = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
