"""`report.html` of an evaluation, a rescoring or a comparison: one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from turnwise.evaluation.estimates import Bounded
from turnwise.report.load import RunData, load_run, readable
from turnwise.report.sections import Table, ending_legend, ledger_rows, metric_rows
from turnwise.report.viewer import MAX_TOKENS, NAMES, episodes_json
from turnwise.run.folder import write_whole
from turnwise.run.progress import number

from apps.evaluators.aime.attempts import AttemptRow
from apps.evaluators.aime.problems import Problem
from apps.evaluators.aime.results import (
    Results,
    SetResult,
    counts,
    points,
    spread_sentences,
    tokens,
)

REPORT = "report.html"
MAX_VOTES = 3
"""Answers that the table of problems names."""
_LIBRARY = importlib.resources.files("turnwise.report").joinpath("templates")


@dataclass(frozen=True, slots=True)
class Section:
    """A table with what it means; sentences may follow it."""

    id: str
    title: str
    text: str
    table: Table
    after: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ProblemLine:
    """A problem: for each run its attempts' scores and their mean; the label, and the votes."""

    id: str
    runs: Sequence[tuple[Sequence[float | None], str]]
    label: str
    votes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What stands on the page beside what the run's own files give."""

    verdict: str
    cards: Sequence[tuple[str, str]]
    note: str
    claim: Sequence[str]
    sections: Sequence[Section]
    problems: Sequence[ProblemLine] = ()
    runs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Parts:
    """The sections of the shared page that a comparison has not."""

    ledger: Mapping[str, Any] = field(default_factory=lambda: {"lines": []})
    endings: Sequence[Any] = ()
    metrics: Table = Table((), (), 0)


def results_page(results: Results, rows: Sequence[AttemptRow], problems: Sequence[Problem]) -> Page:
    """The page of an evaluation or a rescoring."""
    main = results.main
    cards = [
        (f"avg@{main.k}", points(main.avg.estimate)),
        (f"maj@{main.k}", points(main.maj.estimate)),
        (f"pass@{main.k}", points(main.passes[str(main.k)].estimate)),
        ("coverage", number(main.coverage, ".1%")),
        ("problems × attempts", f"{main.problems} × {main.k}"),
        ("method", results.method),
        *((name.replace("_", " "), f"{value}") for name, value in results.sampling.items()),
    ]
    return Page(
        verdict=results.verdict(),
        cards=cards,
        note=tokens(results),
        claim=results.claim,
        sections=[_scores(name, found) for name, found in results.sets.items()]
        + [_grading(results)]
        + ([_services(results.services)] if results.services else []),
        problems=problem_lines(problems, [rows]),
        runs=["attempts"],
    )


def problem_lines(
    problems: Sequence[Problem], runs: Sequence[Iterable[AttemptRow]]
) -> list[ProblemLine]:
    """Each problem with its attempts in every run; votes are those of the last one."""
    tables: list[dict[str, dict[int, AttemptRow]]] = []
    for rows in runs:
        tables.append({problem.id: {} for problem in problems})
        for row in rows:
            tables[-1][row.task_id][row.trial] = row
    made = []
    for problem in problems:
        shown = []
        for table in tables:
            ordered = [row for _, row in sorted(table[problem.id].items())]
            scores = [row.score for row in ordered]
            scored = [score for score in scores if score is not None]
            mean = number(sum(scored) / len(scored) if scored else None, ".2f")
            shown.append((scores, mean))
        votes = Counter(row.prediction or "no answer" for row in tables[-1][problem.id].values())
        most = ", ".join(f"{text[:40]} ×{count}" for text, count in votes.most_common(MAX_VOTES))
        made.append(ProblemLine(problem.id, shown, problem.label[:40], most))
    return made


def write_page(folder: Path, page: Page, config: Mapping[str, Any]) -> Path:
    """Writes report.html whole or not at all.

    Raises:
        ConfigError: naming file and line, if a file of the folder is broken.
    """
    if (folder / "metrics.jsonl").is_file():
        run = load_run(folder)
        ledger = ledger_rows(run)
        ledger["lines"] = [replace(line, name="attempts") for line in ledger["lines"]]
        parts = _Parts(ledger, ending_legend(run), metric_rows(run))
        # What an evaluation without a token or a trace lacks is no gap of this page.
        run = replace(run, gaps=[gap for gap in run.gaps if not gap.endswith("is missing")])
    else:
        run = RunData(folder.resolve().name, config, (), (), None, (), 0, ())
        parts = _Parts()
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [
                jinja2.FunctionLoader(lambda name: _text(_LIBRARY, name)),
                jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
            ]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    path = folder / REPORT
    template = environment.get_template("report.html.jinja")
    write_whole(path, template.render(_context(run, page, parts)))
    return path


def _context(run: RunData, page: Page, parts: _Parts) -> dict[str, Any]:
    script = _text(_LIBRARY, "viewer.js") or ""
    return {
        "run": run,
        "verdict": page.verdict,
        "cards": page.cards,
        "note": page.note,
        "claim": page.claim,
        "sections": page.sections,
        "problems": page.problems,
        "runs": page.runs,
        "ledger": parts.ledger,
        "endings": parts.endings,
        "metrics": parts.metrics,
        "ending_chart": None,
        "stages": (),
        "time_chart": None,
        "config": {name: readable(value) for name, value in run.config.items()},
        "authors": NAMES,
        "max_tokens": MAX_TOKENS,
        "episodes": episodes_json(run.traces),
        "style": Markup(_text(_LIBRARY, "style.css")),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


def _scores(name: str, found: SetResult) -> Section:
    def row(label: str, value: Bounded) -> tuple[str, ...]:
        estimate = value.estimate
        return (
            label,
            number(estimate.mean, ".1%"),
            number(estimate.stderr, ".1%"),
            number(value.low, ".1%"),
            number(value.high, ".1%"),
            f"{estimate.tasks:,} of {found.problems:,}",
        )

    rows = [row(f"avg@{found.k}", found.avg), row(f"maj@{found.k}", found.maj)]
    rows += [row(f"pass@{j}", value) for j, value in found.passes.items()]
    head = ("", "score", "standard error", "lost = wrong", "lost = right", "problems")
    return Section(
        id=f"set-{name}",
        title=f"Scores on {name}",
        text=(
            f"{found.scored:,} of {found.attempts:,} attempts carry a score. Errors are standard"
            " errors clustered by problem. The two columns after them count every attempt, with"
            " those that were lost wrong, or right."
        ),
        table=Table(head, rows, len(rows)),
        after=[
            f"{sentence[:1].upper()}{sentence[1:]}." for sentence in spread_sentences(found.spread)
        ],
    )


def _grading(results: Results) -> Section:
    rows = [
        [name, *(f"{found.by.get(name, 0):,}" for found in results.sets.values())]
        for name in results.main.by
    ]
    return Section(
        id="grading",
        title="How the outputs were graded",
        text="By rules alone, the same for every method. Attempts by the rule that decided.",
        table=Table(("", *results.sets), rows, len(rows)),
        after=[f"Endings: {counts(results.endings)}."],
    )


def _services(services: Mapping[str, float]) -> Section:
    rows = [(name, f"{value:,.6g}") for name, value in services.items()]
    return Section(
        id="services",
        title="Frozen models and tools",
        text="Totals as the method counts them, of every process that ended properly.",
        table=Table(("", "total"), rows, len(rows)),
    )


def _text(folder: Any, name: str) -> str | None:
    """A file of the library's templates; None if there is no such file."""
    path = folder.joinpath(name)
    return path.read_text(encoding="utf-8") if path.is_file() else None
