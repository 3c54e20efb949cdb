"""Charts stay in their frame whatever the numbers are."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from turnwise.report import charts
from turnwise.report.charts import (
    HEIGHT,
    LEAST,
    WIDTH,
    Chart,
    Level,
    Point,
    Stack,
    curve_chart,
    stack_chart,
)

numbers = st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf, 0.0, 1e-12])
errors = st.none() | st.floats(0, 1e6) | st.just(math.nan)


def draw(points: list[Point], **how: object) -> Chart:
    made = {"style": "train", "form": "{:.3g}".format, **how}
    chart = curve_chart("Reward", points, **made)  # type: ignore[arg-type]
    assert chart is not None
    return chart


def places(chart: Chart) -> list[tuple[float, float]]:
    """Every coordinate of the drawing."""
    root = ElementTree.fromstring(chart.svg)
    found = []
    for element in root.iter():
        for pair in (element.get("points") or "").split():
            x, y = pair.split(",")
            found.append((float(x), float(y)))
        for x_name, y_name in (("x", "y"), ("cx", "cy"), ("x1", "y1"), ("x2", "y2")):
            if x_name in element.attrib:
                found.append((float(element.attrib[x_name]), float(element.attrib[y_name])))
    return found


def dots(chart: Chart) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(chart.svg)
    return [(float(d.attrib["cx"]), float(d.attrib["cy"])) for d in root.iter("circle")]


@example([(5e-324, None), (1e-300, None), (1e300, 1.0)], True)
@example([(1e-320, None)], False)
@given(st.lists(st.tuples(numbers, errors), max_size=30), st.booleans())
def test_a_curve_never_leaves_its_frame(
    values: list[tuple[float, float | None]], log: bool
) -> None:
    points = [Point(step, value, error) for step, (value, error) in enumerate(values)]
    chart = curve_chart("Loss", points, style="other", form="{:.3g}".format, log=log, bounds=None)
    usable = [p for p in points if math.isfinite(p.y) and (p.y >= LEAST or not log)]
    assert (chart is None) == (not usable)
    if chart is not None:
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places(chart))
        assert "nan" not in chart.svg


def test_higher_values_and_later_steps_stand_higher_and_further_right() -> None:
    (x0, y0), (x1, y1), (x2, y2) = dots(draw([Point(1, 0.2), Point(2, 0.9), Point(3, 0.5)]))
    assert x0 < x1 < x2
    assert y1 < y2 < y0


def test_the_band_reaches_one_error_to_both_sides() -> None:
    chart = draw([Point(0, 0.5, 0.1), Point(1, 0.7, 0.2)], bounds=(0.0, 1.0))
    frame = {y: float(place) for place, y in re.findall(r'y="([\d.]+)">([\d.]+)<', chart.svg)}
    polygon = ElementTree.fromstring(chart.svg).find("polygon")
    assert polygon is not None
    ys = [float(pair.split(",")[1]) for pair in polygon.attrib["points"].split()]
    # Ticks lie 3.5 below their line.
    scale = (frame["0.4"] - frame["0.8"]) / 0.4
    zero = frame["0.4"] - 3.5 + 0.4 * scale
    assert ys == pytest.approx([zero - v * scale for v in (0.6, 0.9, 0.5, 0.4)], abs=0.2)


def test_a_rate_has_no_axis_beyond_0_and_1() -> None:
    chart = draw([Point(0, 0.98, 0.1), Point(1, 0.02, 0.1)], bounds=(0.0, 1.0))
    ticks = [float(text) for text in re.findall(r'text-anchor="end"[^>]*>([-\d.]+)<', chart.svg)]
    assert min(ticks) == 0 and max(ticks) == 1
    band = ElementTree.fromstring(chart.svg).find("polygon")
    assert band is not None
    ys = [float(pair.split(",")[1]) for pair in band.attrib["points"].split()]
    assert min(ys) == charts.TOP and max(ys) == HEIGHT - charts.BOTTOM


def test_what_is_compared_with_is_in_the_picture() -> None:
    chart = draw([Point(0, 0.5), Point(1, 0.6)], levels=[Level("doing nothing", 0.05)])
    assert "doing nothing" in chart.svg
    level = next(
        e for e in ElementTree.fromstring(chart.svg).iter("line") if e.get("class") == "level"
    )
    assert float(level.attrib["y1"]) > max(y for _, y in dots(chart))


def test_a_long_run_is_drawn_by_means_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "MAX_POINTS", 5)
    chart = draw([Point(step, step % 2, 1.0) for step in range(10)], note="Mean.")
    assert len(dots(chart)) == 5
    assert chart.note == "Mean. Each point is the mean of 2 steps."
    assert "0.5 ± 0.707" in chart.svg


def test_names_are_shown_and_never_parsed() -> None:
    evil = "<script>alert(1)</script>"
    chart = stack_chart(evil, [Stack(1, {evil: 2.0})], {evil: evil}, form=str)
    assert chart is not None and "<script" not in chart.svg


def test_parts_of_a_bar_stand_on_each_other() -> None:
    stacks = [Stack(step, {"finished": 6.0, "lost": 2.0}) for step in (1, 2)]
    chart = stack_chart("Endings", stacks, {"finished": "a", "lost": "b"}, form="{:g}".format)
    assert chart is not None
    root = ElementTree.fromstring(chart.svg)
    bars = [{k: float(e.attrib[k]) for k in ("y", "height")} for e in root.iter("rect")]
    assert bars[0]["height"] == pytest.approx(3 * bars[1]["height"], abs=0.3)
    assert bars[1]["y"] + bars[1]["height"] == pytest.approx(bars[0]["y"], abs=0.2)


def test_many_bars_become_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "MAX_BARS", 2)
    stacks = [Stack(step, {"a": float(step)}) for step in range(1, 5)]
    chart = stack_chart("Time", stacks, {"a": "x"}, form="{:g}".format)
    assert chart is not None and chart.note == "Each bar is the mean of 2 steps."
    assert "step 1: a 1.5" in chart.svg and "step 3: a 3.5" in chart.svg


def test_nothing_to_draw_is_no_chart() -> None:
    assert stack_chart("Time", [], {}, form=str) is None
    assert stack_chart("Time", [Stack(1, {"a": 0.0})], {"a": "x"}, form=str) is None
