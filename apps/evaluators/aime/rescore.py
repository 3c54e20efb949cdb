"""Grades saved outputs again: what the same rules make of what was written, without a model."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from turnwise.answers.labels import same_text
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, Ending
from turnwise.evaluation.estimates import RIGHT
from turnwise.report.sections import Table
from turnwise.run.folder import RunFolder
from turnwise.run.progress import number

from apps.evaluators.aime.attempts import AttemptRow, open_journal, write_problems
from apps.evaluators.aime.compare import LIKE_FOR_LIKE
from apps.evaluators.aime.grading import Grader, graded_row
from apps.evaluators.aime.options import EvalOptions
from apps.evaluators.aime.page import Section, results_page, write_page
from apps.evaluators.aime.problems import Problem
from apps.evaluators.aime.results import lines, summarise, write_results
from apps.evaluators.aime.saved import SavedRun, read_saved
from apps.evaluators.aime.spread import Spread, spread_of

_MARKER_AT_END = re.compile(r"<\|[^\s<>|]{1,64}\|>\s*$|</s>\s*$")


NOT_SAVED = Ending.lost(BoundaryError(Boundary.ENVIRONMENT, "not saved"))
"""Of an output that the other problems have and this one lacks."""


class RunScore(msgspec.Struct, frozen=True, kw_only=True):
    """One saved run: how many outputs, and their mean score as saved and as graded now."""

    name: str
    outputs: int
    saved: float | None
    now: float | None


class Rescored(msgspec.Struct, frozen=True, kw_only=True):
    """What grading again showed.

    Attributes:
        runs: Each saved run.
        agreement: Outputs by saved and new score: `right, now wrong` and so on.
        markers: Outputs that end with the text of a special token.
        saved_spread, spread: Of the runs' scores, as saved and as graded now.
    """

    runs: tuple[RunScore, ...]
    agreement: dict[str, int]
    markers: int
    saved_spread: Spread
    spread: Spread

    def sentences(self) -> list[str]:
        """For people."""
        told = [
            "as saved and as graded now: "
            + "; ".join(f"{name} {count:,}" for name, count in self.agreement.items())
        ]
        if self.markers:
            told.append(f"{self.markers:,} outputs end with the text of a special token")
        for name, spread in (("as saved", self.saved_spread), ("graded now", self.spread)):
            if spread.runs > 1:
                told.append(f"{name}: {spread.sentence()}")
        return told


@dataclass(frozen=True, slots=True)
class _Loaded:
    problems: Sequence[Problem]
    rows: Sequence[AttemptRow]
    rescored: Rescored
    k: int


def rescore_here(options: EvalOptions) -> int:
    """The command; returns the exit code.

    Raises:
        ConfigError: naming what can't be read.
    """
    runs = [run for path in options.rescore for run in read_saved(path)]
    name = options.rescore[0].resolve().stem if len(options.rescore) == 1 else "saved"
    loaded = asyncio.run(_grade(runs, name.replace("#", "-")))
    folder = _folder(options, loaded)
    journal = open_journal(folder.path)
    for row in loaded.rows:
        journal.append(row)
    results = summarise(
        rows=loaded.rows,
        tries=loaded.rows,
        problems=loaded.problems,
        k=loaded.k,
        kind="rescore",
        policy=name,
        method="saved outputs",
        sampling={},
        claim=(
            "Saved outputs graded by rules; no model was asked.",
            "An output that other problems have and one lacks counts as lost.",
        ),
    )
    written = write_results(folder.path, results, msgspec.to_builtins(loaded.rescored))
    page = results_page(results, loaded.rows, loaded.problems)
    page = replace(page, sections=[*page.sections, _section(loaded.rescored)])
    report = write_page(folder, page)
    for line in [*lines(results), *loaded.rescored.sentences()]:
        print(line)
    print(f"{written}, {report}")
    return 0


async def _grade(runs: Sequence[SavedRun], name: str) -> _Loaded:
    problems = _problems(runs, name)
    numbers, k = _attempts(runs)
    grader = Grader()
    rows: list[AttemptRow] = []
    scores: list[RunScore] = []
    try:
        for run, places in zip(runs, numbers, strict=True):
            graded = await asyncio.gather(
                *(
                    graded_row(
                        grader,
                        problems[saved.question],
                        attempt,
                        ending=saved.ending,
                        output=saved.output,
                    )
                    for saved, attempt in zip(run.outputs, places, strict=True)
                )
            )
            rows += graded
            scores.append(
                RunScore(
                    name=run.name,
                    outputs=len(graded),
                    saved=_mean([saved.score for saved in run.outputs]),
                    now=_mean([row.score for row in graded]),
                )
            )
        outputs = [saved for run in runs for saved in run.outputs]
        agreement = Counter(
            f"{_word(saved.score)}, now {_word(row.score)}"
            for saved, row in zip(outputs, rows, strict=True)
        )
        done = {(row.task_id, row.trial) for row in rows}
        rows += [
            await graded_row(grader, problem, attempt, ending=NOT_SAVED, output="")
            for problem in problems.values()
            for attempt in range(k)
            if (problem.id, attempt) not in done
        ]
    finally:
        await grader.close()
    rescored = Rescored(
        runs=tuple(scores),
        agreement=dict(agreement.most_common()),
        markers=sum(bool(_MARKER_AT_END.search(saved.output)) for saved in outputs),
        saved_spread=spread_of([run.saved for run in scores if run.saved is not None]),
        spread=spread_of([run.now for run in scores if run.now is not None]),
    )
    return _Loaded(list(problems.values()), rows, rescored, k)


def _attempts(runs: Sequence[SavedRun]) -> tuple[list[list[int]], int]:
    """Which attempt at its problem each output is, and how many there are.

    A single run keeps its numbers if it has some. Attempt j is run j where no run asks a question
    twice; otherwise outputs are counted.

    Raises:
        ConfigError: if a number stands twice at a question.
    """
    if len(runs) == 1:
        known = [saved.attempt for saved in runs[0].outputs if saved.attempt is not None]
        if len(known) == len(runs[0].outputs):
            places = Counter((saved.question, saved.attempt) for saved in runs[0].outputs)
            (question, attempt), count = places.most_common(1)[0]
            if count > 1:
                raise ConfigError(
                    f"{runs[0].name}: attempt {attempt} at {question[:60]!r} stands {count} times"
                )
            return [known], max(known) + 1
    single = all(len({saved.question for saved in run.outputs}) == len(run.outputs) for run in runs)
    counts: Counter[str] = Counter()
    numbers: list[list[int]] = []
    for index, run in enumerate(runs):
        numbers.append([])
        for saved in run.outputs:
            numbers[-1].append(index if single else counts[saved.question])
            counts[saved.question] += 1
    return numbers, len(runs) if single else max(counts.values())


def _problems(runs: Sequence[SavedRun], name: str) -> dict[str, Problem]:
    """The problems by question.

    Raises:
        ConfigError: if a question stands with two labels.
    """
    problems: dict[str, Problem] = {}
    for run in runs:
        for saved in run.outputs:
            fresh = Problem(name, len(problems) + 1, saved.question, saved.label)
            known = problems.setdefault(saved.question, fresh)
            if same_text(known.label) != same_text(saved.label):
                raise ConfigError(
                    f"{run.name}: a question has the labels {known.label!r} and {saved.label!r}:"
                    f" {saved.question[:60]!r}"
                )
    return problems


def _folder(options: EvalOptions, loaded: _Loaded) -> RunFolder:
    """A folder that can be compared with another where every problem has as many outputs."""
    config = options.model_dump(mode="json")
    config |= dict.fromkeys((*LIKE_FOR_LIKE, "seed", "method", "data"))
    config["n_samples_per_eval_prompt"] = loaded.k
    folder = RunFolder.create(options.run_dir, "rescore-aime", config)
    write_problems(folder.path, loaded.problems)
    return folder


def _section(found: Rescored) -> Section:
    rows = [
        (run.name, f"{run.outputs:,}", number(run.saved, ".1%"), number(run.now, ".1%"))
        for run in found.runs
    ]
    return Section(
        id="runs",
        title="Saved runs",
        before=["The mean score of each, as it was saved and as it is graded now."],
        table=Table(("run", "outputs", "saved", "now"), rows, len(rows)),
        after=[f"{sentence[:1].upper()}{sentence[1:]}." for sentence in found.sentences()],
    )


def _word(score: float | None) -> str:
    if score is None:
        return "none"
    return "right" if score >= RIGHT else "wrong"


def _mean(scores: Sequence[float | None]) -> float | None:
    scored = [score for score in scores if score is not None]
    return sum(scored) / len(scored) if scored else None
