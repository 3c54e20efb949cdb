"""Makes `report.html` from a run folder alone: one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from turnwise.report.figures import ending_chart, evaluation_charts, time_chart, training_charts
from turnwise.report.load import RunData, load_run, readable
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
    stage_rows,
    status,
    task_rows,
)
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
    script = _part("viewer.js")
    summary = run.summary
    return {
        "run": run,
        "summary": summary,
        "learned": isinstance(summary, Summary) and summary.learned,
        "status": status(run),
        "cards": cards(run),
        "charts": [*evaluation_charts(run), *training_charts(run)],
        "ledger": ledger_rows(run),
        "ending_chart": ending_chart(run),
        "endings": ending_legend(run),
        "stages": stage_rows(run),
        "time_chart": time_chart(run),
        "numbers": number_rows(run),
        "metrics": metric_rows(run),
        "used": service_rows(run),
        "tasks": task_rows(run),
        "measures": measure_rows(run),
        "meanings": meanings(run),
        "parts": part_tables(run),
        "tables": more_tables(run),
        "notes": summary.notes if isinstance(summary, EvalSummary) else (),
        "compared": summary.compared if isinstance(summary, EvalSummary) else "",
        "config": {name: readable(value) for name, value in run.config.items()},
        "authors": NAMES,
        "max_tokens": MAX_TOKENS,
        "episodes": episodes_json(run.traces),
        "style": Markup(_part("style.css")),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


def _part(name: str) -> str:
    return (
        importlib.resources.files("turnwise.report")
        .joinpath("templates", name)
        .read_text(encoding="utf-8")
    )
