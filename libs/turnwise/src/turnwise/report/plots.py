"""What the report's charts are drawn from: the data that the page's script hands to uPlot.

Colours are names of the page's style sheet, which knows light and dark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from markupsafe import Markup

MAX_POINTS = 1000
"""Points of a curve; more are averaged in equal groups, and the chart says so."""
MAX_BARS = 60
"""Bars of a stacked chart; more are averaged likewise."""
DIGITS = 6
"""Significant digits of a number on the page."""

Form = Literal["plain", "percent"]


@dataclass(frozen=True, slots=True)
class Point:
    """A value at training step `x`, or another axis', with its standard error where it has one."""

    x: float
    y: float
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its title and what has to be said below it.

    Attributes:
        label: The chart in words, for those who do not see it.
        data: For the page's script; JSON-able.
    """

    title: str
    label: str
    note: str
    data: Mapping[str, Any] = field(default_factory=dict)


def curve(
    title: str,
    points: Sequence[Point],
    *,
    color: str,
    form: Form = "plain",
    levels: Mapping[str, float] | None = None,
    bounds: tuple[float, float] | None = None,
    log: bool = False,
    note: str = "",
    axis: str = "training step",
) -> Chart | None:
    """A curve with a band of one standard error where points have one.

    Args:
        axis: What the points stand over.
        color: A variable of the style sheet: `eval`, `train` or `other`.
        form: How values are written.
        levels: Constants to compare with, by name.
        bounds: What the y axis may not leave, as a rate does not leave 0 and 1.
        log: Logarithmic y axis; values that are not positive are left out.

    Returns:
        None where there is nothing to draw.
    """
    usable = [point for point in points if math.isfinite(point.y) and (point.y > 0 or not log)]
    shown, size = _grouped(usable)
    if not shown:
        return None
    first, last = shown[0], shown[-1]
    step = axis.removeprefix("training ")
    if size > 1:
        note = f"{note} Each point is the mean of {size} steps.".strip()
    return Chart(
        title,
        f"{title}: {first.y:.3g} at {step} {first.x:g}, {last.y:.3g} at {step} {last.x:g}",
        note,
        {
            "kind": "curve",
            "axis": axis,
            "color": color,
            "form": form,
            "x": [_short(point.x) for point in shown],
            "y": [_short(point.y) for point in shown],
            "errors": [_short(point.error) for point in shown],
            "levels": {name: _short(value) for name, value in (levels or {}).items()},
            "bounds": bounds,
            "log": log,
        },
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its step and the height of each part, by the part's name."""

    x: int
    parts: Mapping[str, float]


def stacked_bars(
    title: str, bars: Sequence[Bar], colors: Mapping[str, tuple[str, float]], *, note: str = ""
) -> Chart | None:
    """Bars over steps, their parts one above the other in the order of `colors`.

    Args:
        colors: Of each part a variable of the style sheet and an opacity.
    """
    shown, size = _grouped_bars(bars)
    if not any(height > 0 for bar in shown for height in bar.parts.values()):
        return None
    if size > 1:
        note = f"{note} Each bar is the mean of {size} steps.".strip()
    return Chart(
        title,
        f"{title}: {len(shown)} bars of {', '.join(colors)}",
        note,
        {
            "kind": "bars",
            "form": "plain",
            "x": [bar.x for bar in shown],
            "parts": [
                {
                    "name": name,
                    "color": color,
                    "opacity": opacity,
                    "heights": [_short(bar.parts.get(name, 0.0)) for bar in shown],
                }
                for name, (color, opacity) in colors.items()
            ],
        },
    )


def overlay(
    title: str,
    curves: Mapping[str, Sequence[Point]],
    *,
    axis: str,
    form: Form = "plain",
    log: bool = False,
) -> Chart | None:
    """Curves of several runs in one chart, by the names of the runs.

    Args:
        axis: What x is.
        form, log: As of `curve`.

    Returns:
        None where fewer than two have anything to draw.
    """
    series = []
    for name, points in curves.items():
        usable = [point for point in points if math.isfinite(point.y) and (point.y > 0 or not log)]
        shown, _ = _grouped(usable)
        x, y = [_short(point.x) for point in shown], [_short(point.y) for point in shown]
        series.append({"name": name, "x": x, "y": y})
    if sum(bool(one["x"]) for one in series) < 2:
        return None
    label = f"{title} of {', '.join(curves)}"
    data = {"kind": "lines", "form": form, "log": log, "axis": axis, "series": series}
    return Chart(title, label, "", data)


def script_json(value: Any) -> Markup:
    """A value as JSON that can stand inside of a script element.

    `<`, `>` and `&` are escaped, so no text of a model can end the element or begin another.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _short(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def _grouped(points: Sequence[Point]) -> tuple[list[Point], int]:
    """At most `MAX_POINTS`: means of equal groups, errors as of independent means."""
    size = -(-len(points) // MAX_POINTS)
    if size <= 1:
        return list(points), 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [_mean_point(group) for group in groups], size


def _mean_point(group: Sequence[Point]) -> Point:
    count = len(group)
    errors = [math.nan if point.error is None else point.error for point in group]
    return Point(
        sum(point.x for point in group) / count,
        sum(point.y for point in group) / count,
        math.hypot(*errors) / count,
    )


def _grouped_bars(bars: Sequence[Bar]) -> tuple[list[Bar], int]:
    size = -(-len(bars) // MAX_BARS)
    if size <= 1:
        return list(bars), 1
    shown = []
    for start in range(0, len(bars), size):
        group = bars[start : start + size]
        names = dict.fromkeys(name for bar in group for name in bar.parts)
        means = {
            name: sum(bar.parts.get(name, 0.0) for bar in group) / len(group) for name in names
        }
        shown.append(Bar(group[0].x, means))
    return shown, size
