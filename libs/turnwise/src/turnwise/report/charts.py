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
LEAST = 1e-300
"""Least value on a logarithmic axis, where powers of ten are still exact enough."""

Form = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Point:
    """A value at training step `x`, with its standard error where there is one."""

    x: float
    y: float
    error: float | None = None

    @property
    def band(self) -> float:
        """The error; NaN where there is none."""
        if self.error is None or not math.isfinite(self.error):
            return math.nan
        return self.error


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
    points: Sequence[Point],
    *,
    style: str,
    form: Form,
    levels: Sequence[Level] = (),
    bounds: tuple[float, float] | None = None,
    log: bool = False,
    note: str = "",
) -> Chart | None:
    """A curve over training steps, with a band of one standard error where points have one.

    Args:
        style: Class of its colour: `eval`, `train` or `other`.
        form: Writes a value for people, on the axis and in the points' tooltips.
        levels: Constants to compare with.
        bounds: What the y axis may not leave, as a rate does not leave 0 and 1.
        log: Logarithmic y axis; values below `LEAST` are left out.

    Returns:
        None where there is nothing to draw.
    """
    shown, size = _grouped([point for point in points if _usable(point, log)])
    if not shown:
        return None
    ys = [y for point in shown for y in _extent(point, log)]
    ys += [level.y for level in levels]
    axis = _log_axis(ys) if log else _linear_axis(ys, bounds)
    frame = _Frame(shown[0].x, shown[-1].x, axis)
    parts = [
        _grid(frame, form),
        *(_level(frame, level, left=bool(place % 2)) for place, level in enumerate(levels)),
        _band(frame, shown, style, log),
        _line(frame, shown, style, form),
    ]
    first, last = shown[0], shown[-1]
    label = f"{title}: {form(first.y)} at step {first.x:g}, {form(last.y)} at step {last.x:g}"
    if size > 1:
        note = f"{note} Each point is the mean of {size} steps.".strip()
    return Chart(title, _svg(label, Markup("").join(parts)), note)


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
    return math.isfinite(point.y) and (point.y >= LEAST or not log)


def _extent(point: Point, log: bool) -> Iterator[float]:
    yield point.y
    if not math.isnan(point.band) and not log:
        yield point.y + point.band
        yield point.y - point.band


def _grouped(points: Sequence[Point]) -> tuple[list[Point], int]:
    """At most `MAX_POINTS`: means of equal groups, errors as of independent means."""
    size = -(-len(points) // MAX_POINTS)
    if size <= 1:
        return list(points), 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [_mean_point(group) for group in groups], size


def _mean_point(group: Sequence[Point]) -> Point:
    count = len(group)
    error = math.hypot(*(point.band for point in group)) / count
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
        room = abs(high) * 0.1 if abs(high) > 1e-9 else 1.0
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


def _level(frame: _Frame, level: Level, *, left: bool) -> Markup:
    """The line with its name at one end; neighbours have it at different ends."""
    y = frame.y(level.y)
    anchor, x = ("start", LEFT + 3) if left else ("end", WIDTH - RIGHT)
    return Markup(
        '<line class="level" x1="{}" x2="{}" y1="{}" y2="{}"/>'
        '<text class="tick" text-anchor="{}" x="{}" y="{}">{}</text>'
    ).format(LEFT, WIDTH - RIGHT, _f(y), _f(y), anchor, x, _f(y - 4), level.name)


def _band(frame: _Frame, points: Sequence[Point], style: str, log: bool) -> Markup:
    edges = [
        (point.x, point.y - point.band, point.y + point.band)
        for point in points
        if not math.isnan(point.band)
    ]
    if log or not edges:
        return Markup("")
    if len(edges) == 1:
        x, low, high = edges[0]
        return Markup('<line class="stroke {}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
            style, _f(frame.x(x)), _f(frame.x(x)), _f(frame.y(low)), _f(frame.y(high))
        )
    upper = [f"{_f(frame.x(x))},{_f(frame.y(high))}" for x, _, high in edges]
    lower = [f"{_f(frame.x(x))},{_f(frame.y(low))}" for x, low, _ in reversed(edges)]
    return Markup('<polygon class="band {}" points="{}"/>').format(style, " ".join(upper + lower))


def _line(frame: _Frame, points: Sequence[Point], style: str, form: Form) -> Markup:
    places = " ".join(f"{_f(frame.x(p.x))},{_f(frame.y(p.y))}" for p in points)
    parts = [Markup('<polyline class="stroke {}" points="{}"/>').format(style, places)]
    radius = 3 if len(points) <= 40 else 1.5
    for point in points:
        error = "" if math.isnan(point.band) else f" ± {form(point.band)}"
        parts.append(
            Markup(
                '<circle class="dot {}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>'
            ).format(
                style,
                _f(frame.x(point.x)),
                _f(frame.y(point.y)),
                radius,
                f"step {point.x:g}: {form(point.y)}{error}",
            )
        )
    return Markup("").join(parts)


def _svg(label: str, body: Markup) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, escape(label), body
    )


def _f(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
