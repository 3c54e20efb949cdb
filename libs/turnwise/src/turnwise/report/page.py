"""Makes `report.html` from a run folder alone: one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from turnwise.report.charts import (
    ending_chart,
    evaluation_charts,
    part_charts,
    picture_charts,
    slime_charts,
    time_chart,
    training_charts,
)
from turnwise.report.events import event_rows
from turnwise.report.load import RunData, load_run, readable
from turnwise.report.plots import Chart, script_json
from turnwise.report.sections import (
    cards,
    ending_legend,
    ledger_rows,
    meanings,
    measure_rows,
    metric_rows,
    more_tables,
    number_rows,
    part_tables,
    service_rows,
    slime_rows,
    status,
    task_rows,
)
from turnwise.report.times import stage_rows, waiting
from turnwise.report.viewer import MAX_TOKENS, NAMES, episodes_json
from turnwise.run.folder import RunFolder, write_whole
from turnwise.run.summary import EvalSummary, Summary


def write_report(run_dir: Path) -> Path:
    """Writes `report.html` into the run folder and returns its path.

    The run may be under way or interrupted: the page says what is missing. It is the same for the
    same files.

    Raises:
        ConfigError: if `run_dir` is no run folder, or a file in it is broken; names file and line.
    """
    run = load_run(run_dir)
    if isinstance(run.summary, EvalSummary):
        return _write(run_dir, run, "eval.html.jinja")
    return _write(run_dir, run, "train.html.jinja")


def write_eval_report(run_dir: Path) -> Path:
    """As `write_report`, for an evaluation that may have no summary yet.

    Raises:
        ConfigError: as `write_report`.
    """
    return _write(run_dir, load_run(run_dir), "eval.html.jinja")


def _write(run_dir: Path, run: RunData, template: str) -> Path:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("turnwise.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    path = RunFolder(run_dir).report
    write_whole(path, environment.get_template(template).render(_context(run)))
    return path


def _context(run: RunData) -> dict[str, Any]:
    summary = run.summary
    charts = _Charts()
    scores, pictures = charts.take(evaluation_charts(run)), charts.take(picture_charts(run))
    scripts = [part("vendor", "uplot.js")]
    scripts += [part("templates", name) for name in ("charts.js", "tokens.js", "viewer.js")]
    return {
        "run": run,
        "summary": summary,
        "learned": isinstance(summary, Summary) and summary.learned,
        "status": status(run),
        "cards": cards(run),
        "charts": [*scores, *pictures, *charts.take(training_charts(run))],
        "pictures": pictures,
        "part_charts": charts.take(part_charts(run)),
        "slime_charts": charts.take(slime_charts(run)),
        "ledger": ledger_rows(run),
        "ending_chart": charts.take_one(ending_chart(run)),
        "endings": ending_legend(run),
        "stages": stage_rows(run),
        "waiting": waiting(run),
        "time_chart": charts.take_one(time_chart(run)),
        "numbers": number_rows(run),
        "metrics": metric_rows(run),
        "used": service_rows(run),
        "slime": slime_rows(run),
        "tasks": task_rows(run),
        "measures": measure_rows(run),
        "meanings": meanings(run),
        "parts": part_tables(run),
        "tables": more_tables(run),
        "events": event_rows(run),
        "notes": summary.notes if isinstance(summary, EvalSummary) else (),
        "compared": summary.compared if isinstance(summary, EvalSummary) else "",
        "config": {name: readable(value) for name, value in run.config.items()},
        "authors": NAMES,
        "max_tokens": MAX_TOKENS,
        "episodes": episodes_json(run.traces),
        "style": Markup(part("vendor", "uplot.css") + part("templates", "style.css")),
        "chart_data": charts.json(),
        "scripts": [Markup(script) for script in scripts],
        "script_hashes": [
            base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            for script in scripts
        ],
    }


class _Charts:
    """The charts of a page; the template names each by its number, and the script finds it
    there."""

    def __init__(self) -> None:
        self._data: list[Mapping[str, Any]] = []

    def take(self, charts: Sequence[Chart]) -> list[tuple[int, Chart]]:
        numbered = list(enumerate(charts, start=len(self._data)))
        self._data += [chart.data for chart in charts]
        return numbered

    def take_one(self, chart: Chart | None) -> tuple[int, Chart] | None:
        return None if chart is None else self.take([chart])[0]

    def json(self) -> Markup:
        return script_json(self._data)


def part(folder: str, name: str) -> str:
    """A file of the page, by its name in `templates` or `vendor`."""
    return (
        importlib.resources.files("turnwise.report")
        .joinpath(folder, name)
        .read_text(encoding="utf-8")
    )
