"""Curves and stacked bars as inline SVG.

Every chart is drawn in the same small coordinates, `WIDTH` by `HEIGHT`, and scales to its column:
on a phone one unit is about one pixel, so its text stays readable. Colours are classes of the
page's style sheet, which knows light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 360, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 30
MAX_POINTS = 200
"""Points of a curve; more are averaged in equal groups, and the chart says so."""
MAX_BARS = 60
"""Bars of a stacked chart; more are averaged likewise."""

Form = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Point:
    """A value at training step `x`, with its standard error where there is one."""

    x: float
    y: float
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line. `style` is the class of its colour: `eval`, `train`, `other`."""

    name: str
    style: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart with its title and what has to be said below it."""

    title: str
    svg: Markup
    note: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """A constant to compare with, drawn as a dashed line."""

    name: str
    y: float


def curve_chart(
    title: str,
    curves: Sequence[Curve],
    *,
    form: Form,
    level: Level | None = None,
    bounds: tuple[float, float] | None = None,
    log: bool = False,
    note: str = "",
) -> Chart | None:
    """Curves over training steps, with a band of one standard error where points have one.

    Args:
        form: Writes a value for people, on the axis and in the points' tooltips.
        level: A constant to compare with.
        bounds: What the y axis may not leave, as a rate does not leave 0 and 1.
        log: Logarithmic y axis; values that are not positive are left out.

    Returns:
        None where there is nothing to draw.
    """
    shown, grouped = [], 1
    for curve in curves:
        usable = [point for point in curve.points if _usable(point, log)]
        points, size = _grouped(usable)
        grouped = max(grouped, size)
        if points:
            shown.append(Curve(curve.name, curve.style, tuple(points)))
    if not shown:
        return None
    xs = [point.x for curve in shown for point in curve.points]
    ys = [y for curve in shown for point in curve.points for y in _extent(point, log)]
    if level is not None:
        ys.append(level.y)
    axis = _log_axis(ys) if log else _linear_axis(ys, bounds)
    frame = _Frame(min(xs), max(xs), axis)
    body = Markup("").join(
        [
            _grid(frame, form),
            _level(frame, level) if level is not None else Markup(""),
            *(_band(frame, curve, log) for curve in shown),
            *(_line(frame, curve, form) for curve in shown),
        ]
    )
    label = f"{title}: " + "; ".join(
        f"{f'{curve.name} ' if len(shown) > 1 else ''}{form(curve.points[0].y)} at step {curve.points[0].x:g},"
        f" {form(curve.points[-1].y)} at step {curve.points[-1].x:g}"
        for curve in shown
    )
    if grouped > 1:
        note = f"{note} Each point is the mean of {grouped} steps.".strip()
    return Chart(title, _svg(label, body), note)


@dataclass(frozen=True, slots=True)
class Stack:
    """One bar: its step and the height of each part, by the part's name."""

    x: int
    parts: dict[str, float]


def stack_chart(
    title: str, stacks: Sequence[Stack], styles: dict[str, str], *, form: Form, note: str = ""
) -> Chart | None:
    """Bars over steps, their parts one above the other in the order of `styles`.

    Args:
        styles: Class of the colour of each part.
        form: Writes a height for people.
    """
    bars, size = _grouped_stacks(stacks)
    totals = [sum(bar.parts.values()) for bar in bars]
    if not bars or max(totals) <= 0:
        return None
    frame = _Frame(bars[0].x, bars[-1].x, _linear_axis([0.0, *totals], None), pad=0.5)
    # Bars stand side by side whatever steps they are of.
    slot = (WIDTH - LEFT - RIGHT) / len(bars)
    body = [_grid(frame, form, x_labels=False)]
    for index, bar in enumerate(bars):
        left, below = LEFT + index * slot, 0.0
        for name, style in styles.items():
            height = bar.parts.get(name, 0.0)
            if height <= 0:
                continue
            top, bottom = frame.y(below + height), frame.y(below)
            below += height
            body.append(
                Markup(
                    '<rect class="fill {}" x="{}" y="{}" width="{}" height="{}">'
                    "<title>step {}: {} {}</title></rect>"
                ).format(
                    style,
                    _f(left + 0.08 * slot),
                    _f(top),
                    _f(0.84 * slot),
                    _f(bottom - top),
                    bar.x,
                    name,
                    form(height),
                )
            )
    for index in _spread(len(bars), 6):
        body.append(_x_label(LEFT + (index + 0.5) * slot, f"{bars[index].x}"))
    body.append(_x_title())
    if size > 1:
        note = f"{note} Each bar is the mean of {size} steps.".strip()
    return Chart(title, _svg(title, Markup("").join(body)), note)


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool

    def place(self, value: float) -> float:
        """Where the value lies between 0 and 1."""
        if self.log:
            span = math.log10(self.high) - math.log10(self.low)
            place = (math.log10(value) - math.log10(self.low)) / span
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(max(place, 0.0), 1.0)


class _Frame:
    """From steps and values to coordinates."""

    def __init__(self, first: float, last: float, axis: _Axis, *, pad: float = 0.0) -> None:
        if first == last:
            pad = max(pad, 0.5)
        self.first, self.last, self.axis = first - pad, last + pad, axis

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * self.axis.place(value)


def _usable(point: Point, log: bool) -> bool:
    return math.isfinite(point.y) and (point.y > 0 or not log)


def _extent(point: Point, log: bool) -> Iterator[float]:
    yield point.y
    if point.error is not None and math.isfinite(point.error):
        yield point.y + point.error
        if not log or point.y > point.error:
            yield point.y - point.error


def _grouped(points: Sequence[Point]) -> tuple[list[Point], int]:
    """At most `MAX_POINTS`: means of equal groups, errors as of independent means."""
    size = -(-len(points) // MAX_POINTS)
    if size <= 1:
        return list(points), 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [_mean_point(group) for group in groups], size


def _mean_point(group: Sequence[Point]) -> Point:
    errors = [point.error for point in group if point.error is not None]
    error = math.hypot(*errors) / len(errors) if len(errors) == len(group) else None
    count = len(group)
    return Point(sum(p.x for p in group) / count, sum(p.y for p in group) / count, error)


def _grouped_stacks(stacks: Sequence[Stack]) -> tuple[list[Stack], int]:
    size = -(-len(stacks) // MAX_BARS)
    if size <= 1:
        return list(stacks), 1
    bars = []
    for start in range(0, len(stacks), size):
        group = stacks[start : start + size]
        names = dict.fromkeys(name for stack in group for name in stack.parts)
        parts = {
            name: sum(stack.parts.get(name, 0.0) for stack in group) / len(group) for name in names
        }
        bars.append(Stack(group[0].x, parts))
    return bars, size


def _linear_axis(ys: Sequence[float], bounds: tuple[float, float] | None) -> _Axis:
    low, high = min(ys), max(ys)
    if high - low < 1e-12:
        room = abs(high) * 0.1 or 1.0
        low, high = low - room, high + room
    step = _tick_step((high - low) / 4)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
        if high <= low:
            low, high = bounds
    count = round((high - low) / step)
    return _Axis(low, high, tuple(low + index * step for index in range(count + 1)), log=False)


def _tick_step(raw: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)


def _log_axis(ys: Sequence[float]) -> _Axis:
    low = math.floor(math.log10(min(ys)))
    high = max(math.ceil(math.log10(max(ys))), low + 1)
    stride = -(-(high - low) // 5)
    ticks = tuple(10.0**power for power in range(low, high + 1, stride))
    return _Axis(10.0**low, 10.0**high, ticks, log=True)


def _spread(count: int, most: int) -> list[int]:
    """Up to `most` indices of `count`, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


def _grid(frame: _Frame, form: Form, *, x_labels: bool = True) -> Markup:
    parts = []
    for tick in frame.axis.ticks:
        y = frame.y(tick)
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>'
                '<text class="tick" text-anchor="end" x="{}" y="{}">{}</text>'
            ).format(LEFT, WIDTH - RIGHT, _f(y), _f(y), LEFT - 6, _f(y + 3.5), form(tick))
        )
    if x_labels:
        for value in _x_ticks(frame):
            parts.append(_x_label(frame.x(value), f"{value:g}"))
        parts.append(_x_title())
    return Markup("").join(parts)


def _x_ticks(frame: _Frame) -> list[int]:
    first, last = math.ceil(frame.first), math.floor(frame.last)
    step = max(1, round(_tick_step(max(last - first, 1) / 5)))
    return list(range(-(-first // step) * step, last + 1, step))


def _x_label(x: float, text: str) -> Markup:
    return Markup('<text class="tick" text-anchor="middle" x="{}" y="{}">{}</text>').format(
        _f(x), HEIGHT - BOTTOM + 14, text
    )


def _x_title() -> Markup:
    return Markup('<text class="tick" text-anchor="end" x="{}" y="{}">training step</text>').format(
        WIDTH - RIGHT, HEIGHT - 3
    )


def _level(frame: _Frame, level: Level) -> Markup:
    y = frame.y(level.y)
    return Markup(
        '<line class="level" x1="{}" x2="{}" y1="{}" y2="{}"/>'
        '<text class="tick" text-anchor="end" x="{}" y="{}">{}</text>'
    ).format(LEFT, WIDTH - RIGHT, _f(y), _f(y), WIDTH - RIGHT, _f(y - 4), level.name)


def _band(frame: _Frame, curve: Curve, log: bool) -> Markup:
    edges = [
        (point.x, point.y - point.error, point.y + point.error)
        for point in curve.points
        if point.error is not None and math.isfinite(point.error)
    ]
    if log or not edges:
        return Markup("")
    if len(edges) == 1:
        x, low, high = edges[0]
        return Markup('<line class="stroke {}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
            curve.style, _f(frame.x(x)), _f(frame.x(x)), _f(frame.y(low)), _f(frame.y(high))
        )
    upper = [f"{_f(frame.x(x))},{_f(frame.y(high))}" for x, _, high in edges]
    lower = [f"{_f(frame.x(x))},{_f(frame.y(low))}" for x, low, _ in reversed(edges)]
    return Markup('<polygon class="band {}" points="{}"/>').format(
        curve.style, " ".join(upper + lower)
    )


def _line(frame: _Frame, curve: Curve, form: Form) -> Markup:
    places = " ".join(f"{_f(frame.x(p.x))},{_f(frame.y(p.y))}" for p in curve.points)
    parts = [Markup('<polyline class="stroke {}" points="{}"/>').format(curve.style, places)]
    for point in curve.points:
        error = "" if point.error is None else f" ± {form(point.error)}"
        parts.append(
            Markup(
                '<circle class="dot {}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>'
            ).format(
                curve.style,
                _f(frame.x(point.x)),
                _f(frame.y(point.y)),
                3 if len(curve.points) <= 40 else 1.5,
                f"{curve.name}, step {point.x:g}: {form(point.y)}{error}",
            )
        )
    return Markup("").join(parts)


def _svg(label: str, body: Markup) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, escape(label), body
    )


def _f(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
