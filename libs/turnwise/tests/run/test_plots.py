"""What the page's script is given to draw, and that it draws it."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from turnwise.report import plots
from turnwise.report.plots import Bar, Chart, Point, curve, script_json, stacked_bars

numbers = st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf, 0.0, 1e-12])
errors = st.none() | st.floats(0, 1e6) | st.just(math.nan)
DRAW = Path(plots.__file__).parent / "templates" / "charts.js"


def draw(points: list[Point], **how: Any) -> dict[str, Any]:
    made = curve("Reward", points, **{"color": "train", **how})
    assert made is not None
    return dict(made.data)


@example([(5e-324, None), (1e-300, None), (1e300, 1.0)], True)
@given(st.lists(st.tuples(numbers, errors), max_size=30), st.booleans())
def test_a_curve_holds_what_can_be_drawn_and_nothing_else(
    values: list[tuple[float, float | None]], log: bool
) -> None:
    points = [Point(step, y, error) for step, (y, error) in enumerate(values)]
    made = curve("Reward", points, color="train", log=log)
    usable = [point for point in points if math.isfinite(point.y) and (point.y > 0 or not log)]
    if not usable:
        assert made is None
        return
    assert made is not None
    data = json.loads(json.dumps(made.data, allow_nan=False))
    assert data["x"] == [point.x for point in usable]
    assert data["y"] == [pytest.approx(point.y, rel=1e-5) for point in usable]
    assert all(error is None or error >= 0 for error in data["errors"])
    assert len(data["x"]) == len(data["y"]) == len(data["errors"])


def test_a_long_run_is_drawn_by_means_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "MAX_POINTS", 10)
    points = [Point(step, step % 2, 0.1) for step in range(100)]
    made = curve("Reward", points, color="train", note="Mean.")
    assert made is not None and made.note == "Mean. Each point is the mean of 10 steps."
    assert made.data["y"] == [0.5] * 10
    assert made.data["errors"] == [pytest.approx(0.1 / math.sqrt(10), rel=1e-4)] * 10
    assert all(after > before for before, after in pairwise(made.data["x"]))


def test_many_bars_become_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "MAX_BARS", 3)
    bars = [Bar(step, {"a": 2.0, **({"b": 4.0} if step % 2 else {})}) for step in range(6)]
    made = stacked_bars("Time", bars, {"a": ("eval", 1.0), "b": ("train", 0.5)})
    assert made is not None and "mean of 2 steps" in made.note
    assert made.data["x"] == [0, 2, 4]
    assert [part["heights"] for part in made.data["parts"]] == [[2.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("bars", [[], [Bar(1, {})], [Bar(1, {"a": 0.0})]])
def test_nothing_to_draw_is_no_chart(bars: list[Bar]) -> None:
    assert stacked_bars("Time", bars, {"a": ("eval", 1.0)}) is None


@given(st.text())
def test_no_text_ends_the_script_that_holds_it(text: str) -> None:
    found = str(script_json({"name": text.encode("utf-8", "replace").decode()}))
    assert not set("<>&\u2028\u2029") & set(found)
    assert json.loads(found)["name"] == text.encode("utf-8", "replace").decode()


CHARTS = [
    curve("a", [Point(1, 0.2, 0.1), Point(4, 0.6)], color="eval", form="percent",
          levels={"doing nothing": 0.05}, bounds=(0.0, 1.0)),
    curve("b", [Point(1, 1e-6), Point(2, 3e-5)], color="other", log=True),
    stacked_bars("c", [Bar(1, {"x": 1.0, "y": 2.0}), Bar(3, {"y": 4.0})],
                 {"x": ("eval", 1.0), "y": ("train", 0.5)}),
]  # fmt: skip


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
def test_the_script_hands_every_chart_to_the_library_as_it_is_meant(tmp_path: Path) -> None:
    charts = [chart.data for chart in CHARTS if isinstance(chart, Chart)]
    page = tmp_path / "page.js"
    page.write_text(_PAGE % (json.dumps(charts), DRAW.read_text(encoding="utf-8")))
    done = subprocess.run(["node", str(page)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    score, gap, bars = json.loads(done.stdout)
    assert score["data"][:2] == [[1, 4], [0.2, 0.6]]
    assert score["data"][2:] == [[pytest.approx(0.3), None], [0.1, None], [0.05, 0.05]]
    assert score["range"] == [0, 1] and score["distr"] == 1
    assert score["still"] == "- - doing nothing 5%"
    assert score["told"] == ["step 1: 20% ± 10%", "step 4: 60%"]
    assert gap["data"][:2] == [[1, 2], [1e-6, 3e-5]] and gap["distr"] == 3
    assert gap["told"][0] == "step 1: 1e-6"
    # The topmost part reaches over all below it and is drawn first.
    assert bars["data"] == [[0, 1], [3, 4], [1, 0]]
    assert bars["told"] == ["step 1: x 1, y 2", "step 3: y 4"]


_PAGE = """
const charts = %s;
const out = [];
const places = charts.map((_, n) => ({
  dataset: { chart: String(n) }, clientWidth: 300,
  append(readout) { this.readout = readout; out[n].still = readout.textContent; },
}));
globalThis.document = {
  documentElement: {},
  getElementById: () => ({ textContent: JSON.stringify(charts) }),
  querySelectorAll: () => places,
  createElement: () => ({}),
};
globalThis.getComputedStyle = () => ({ getPropertyValue: (name) => name });
globalThis.ResizeObserver = class { observe() {} };
globalThis.matchMedia = () => ({ addEventListener() {} });
globalThis.uPlot = class {
  static rangeNum(low, high) { return [low - 1, high + 1]; }
  static rangeLog(low, high) { return [low, high]; }
  static paths = { bars: () => () => null };
  constructor(options, data, place) {
    const { y } = options.scales;
    out.push({ data, distr: y.distr, range: y.range(this, 0, 1), options, place });
  }
};
%s
for (const one of out) {
  const count = one.data[0].length;
  one.told = [...Array(count).keys()].map((idx) => {
    one.options.hooks.setCursor[0]({ cursor: { idx } });
    return one.place.readout.textContent;
  });
  for (const series of one.options.series) for (const key of ["stroke", "fill"])
    if (typeof series[key] === "function") series[key]();
  delete one.options;
  delete one.place;
}
console.log(JSON.stringify(out));
"""
