"""The report's charts, from a read run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from turnwise.report.charts import Chart, Level, Point, Stack, curve_chart, stack_chart
from turnwise.report.load import RunData
from turnwise.run.metrics import TrainRow

MAX_METRICS = 8
"""Charts of what a method counts; the table has all of it."""

STAGES = {"rollout": "stage-a", "training": "stage-b", "evaluation": "stage-c"}


def evaluation_charts(run: RunData) -> list[Chart]:
    points = _points(run.evals, lambda row: row.reward_mean, lambda row: row.reward_stderr)
    baselines = next((row.baselines for row in run.evals if row.baselines), {})
    chart = curve_chart(
        "Score of the evaluations",
        points,
        style="eval",
        form=percent,
        bounds=(0.0, 1.0) if all(0 <= point.y <= 1 for point in points) else None,
        levels=[Level(name, value) for name, value in baselines.items()],
        note="Band: one standard error, clustered by task.",
    )
    return [chart] if chart else []


def training_charts(run: RunData) -> list[Chart]:
    rewards = _points(run.trains, lambda row: row.reward_mean, lambda row: row.reward_stderr)
    unit = all(0 <= point.y <= 1 for point in rewards)
    charts = [
        curve_chart(
            "Reward in training",
            rewards,
            style="train",
            form=plain,
            bounds=(0.0, 1.0) if unit else None,
            note="Mean of scored rollouts; band: one standard error over prompts.",
        )
    ]

    def single(title: str, get: Callable[[TrainRow], float | None], note: str, **how: Any) -> None:
        points = _points(run.trains, get)
        charts.append(curve_chart(title, points, style="other", form=plain, note=note, **how))

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
        yield curve_chart(title, points, style="other", form=plain, note="Mean.")


def ending_chart(run: RunData) -> Chart | None:
    stacks = [
        Stack(row.step, {name: float(count) for name, count in row.endings.items()})
        for row in run.trains
    ]
    return stack_chart("Endings per training step", stacks, ending_styles(run), form=plain)


def time_chart(run: RunData) -> Chart | None:
    evals: dict[int, float] = {}
    for row in run.evals:
        evals[row.step] = evals.get(row.step, 0.0) + row.eval_s
    steps = {row.step: {"rollout": row.rollout_s, "training": row.train_s} for row in run.trains}
    stacks = [
        Stack(step, {**steps.get(step, {}), "evaluation": evals.get(step, 0.0)})
        for step in sorted({*steps, *evals})
    ]
    return stack_chart("Seconds per step", stacks, STAGES, form=plain)


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


def ending_styles(run: RunData) -> dict[str, str]:
    """A colour by kind for every ending of the run; several of a kind differ in strength."""
    labels = {label for row in run.rows for label in row.endings}
    seen: dict[str, int] = {}
    styles = {}
    for label in sorted(labels, key=_ending_rank):
        kind = label.partition(":")[0]
        seen[kind] = seen.get(kind, -1) + 1
        styles[label] = f"end-{kind} shade-{seen[kind] % 4}"
    return styles


def percent(value: float) -> str:
    """0.5 as `50%`."""
    return f"{100 * value:.3g}%"


def plain(value: float) -> str:
    """A number with three digits; `2.5e-4` below a thousandth, `12,000` above a thousand."""
    if value != 0 and abs(value) < 1e-3:
        digits, power = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
