"""`report.html` of an evaluation, a rescoring or a comparison: one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup
from turnwise.config import ConfigError
from turnwise.evaluation.estimates import Bounded
from turnwise.report.load import MAX_EPISODES, readable
from turnwise.report.sections import Table, thinned
from turnwise.report.viewer import NAMES, episodes_json
from turnwise.run.folder import RunFolder, write_whole
from turnwise.run.jsonl import read_rows
from turnwise.run.progress import number
from turnwise.run.traces import Trace, parse_trace

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

MAX_VOTES = 3
"""Answers that the table of problems names."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table with sentences before and after it."""

    id: str
    title: str
    before: Sequence[str]
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
    notes: Sequence[str]
    claim: Sequence[str]
    sections: Sequence[Section]
    problems: Sequence[ProblemLine] = ()
    runs: Sequence[str] = ()

    @property
    def shown(self) -> list[ProblemLine]:
        """The problems that the page has room for, evenly chosen."""
        return thinned(self.problems)

    @property
    def left_out(self) -> int:
        return len(self.problems) - len(self.shown)


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
        notes=[f"{results.equation}.", f"Endings: {counts(results.endings)}."]
        + ([f"Tokens of the {tokens(results)}."] if results.totals else []),
        claim=results.claim,
        sections=[_scores(name, found) for name, found in results.sets.items()]
        + [_grading(results)]
        + ([_services(results.services)] if results.services else [])
        + ([_totals(results)] if results.totals else []),
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
        last = tables[-1][problem.id].values()
        votes = Counter(row.vote or "no answer" for row in last if row.score is not None)
        most = ", ".join(f"{text[:40]} ×{count}" for text, count in votes.most_common(MAX_VOTES))
        made.append(ProblemLine(problem.id, shown, problem.label[:40], most))
    return made


def write_page(folder: RunFolder, page: Page) -> Path:
    """Writes report.html whole or not at all.

    Raises:
        ConfigError: naming file and line, if the configuration or a trace is broken.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [
                jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
                jinja2.FunctionLoader(lambda name: _text(name) or None),
            ]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script, traces = _text("viewer.js"), _traces(folder)
    text = environment.get_template("report.html.jinja").render(
        name=folder.path.resolve().name,
        page=page,
        traces=episodes_json(traces) if traces else "",
        authors=NAMES,
        config={name: readable(value) for name, value in folder.read_config().items()},
        style=Markup(_text("style.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    write_whole(folder.report, text)
    return folder.report


def _traces(folder: RunFolder) -> list[Trace]:
    traces = []
    for place, row in enumerate(read_rows(folder.episodes), start=1):
        try:
            traces.append(parse_trace(row))
        except ValueError as error:
            raise ConfigError(f"{folder.episodes}:{place}: {error}") from None
    return traces[:MAX_EPISODES]


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
        before=[
            f"{found.scored:,} of {found.attempts:,} attempts carry a score. Errors are standard"
            " errors clustered by problem. The two columns after them count every attempt, with"
            " those that were lost wrong, or right."
        ],
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
        before=["By rules alone, the same for every method. Attempts by what decided."],
        table=Table(("", *results.sets), rows, len(rows)),
    )


def _totals(results: Results) -> Section:
    started = results.ledger["started"]
    rows = [
        (name.replace("_", " "), f"{value:,.6g}", f"{value / started:,.4g}" if started else "-")
        for name, value in results.totals.items()
    ]
    return Section(
        id="totals",
        title="What the attempts counted",
        before=["Sums over all attempts, lost ones included."],
        table=Table(("", "total", "an attempt"), rows, len(rows)),
    )


def _services(services: Sequence[Mapping[str, float]]) -> Section:
    names = list(dict.fromkeys(name for row in services for name in row))
    rows = [
        (name, *(f"{row[name]:,.6g}" if name in row else "-" for row in services)) for name in names
    ]
    head = ("", *(f"process {number}" for number in range(1, len(services) + 1)))
    return Section(
        id="services",
        title="Frozen models and tools",
        before=["As the method counts them, in each process that ended properly."],
        table=Table(head, rows, len(rows)),
    )


def _text(name: str) -> str:
    """A file of the library's page; "" if there is no such file."""
    path = importlib.resources.files("turnwise.report").joinpath("templates", name)
    return path.read_text(encoding="utf-8") if path.is_file() else ""
