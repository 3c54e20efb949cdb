"""Two evaluations of the same problems, the second against the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from turnwise.config import ConfigError
from turnwise.evaluation.estimates import (
    DRAWS,
    Difference,
    avg_at_k,
    paired_bootstrap,
)
from turnwise.evaluation.estimates import (
    Table as Attempts,
)
from turnwise.evaluation.journal import account
from turnwise.report.sections import Table
from turnwise.run.folder import RunFolder, write_whole
from turnwise.run.jsonl import dump
from turnwise.trials import TrialError

from apps.evaluators.aime.attempts import AttemptRow, by_problem, open_journal, read_problems
from apps.evaluators.aime.options import EvalOptions
from apps.evaluators.aime.page import Page, Section, problem_lines, write_page
from apps.evaluators.aime.problems import Problem, by_digest
from apps.evaluators.aime.results import ALL, points

COMPARISON = "comparison.json"
LIKE_FOR_LIKE = ("temperature", "top_p", "max_response_len", "max_context_len")
"""Options that have to be equal for a difference to mean what it says."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two evaluations, its problems known by question and label."""

    name: str
    path: Path
    config: Mapping[str, Any]
    problems: Mapping[str, Problem]
    rows: Sequence[AttemptRow]
    attempts: Attempts
    equation: str

    @property
    def k(self) -> int:
        return max(len(attempts) for attempts in self.attempts.values())


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What changed from `before` to `after`.

    Attributes:
        before, after: Folders' names.
        scores: avg@k of both on each data set, as text with its error.
        differences: By name of the data set, with `all` where there are several.
        unlike: Settings that are not the same, in words.
        draws: Bootstrap samples.
    """

    kind: str = "comparison"
    before: str
    after: str
    scores: dict[str, tuple[str, str]]
    differences: dict[str, Difference]
    unlike: tuple[str, ...]
    draws: int = DRAWS

    def verdict(self) -> str:
        """One sentence for people."""
        name = ALL if ALL in self.differences else next(iter(self.differences))
        found = self.differences[name]
        old, new = self.scores[name]
        change = f"{self.before} {old}, {self.after} {new}: {described(found)}"
        if not found.shown:
            said = f"No difference is shown: {change}"
        else:
            said = f"{self.after} is {'better' if found.mean > 0 else 'worse'}: {change}"
        return f"Not like for like. {said}." if self.unlike else f"{said}."


def compare_here(options: EvalOptions) -> int:
    """The command; returns the exit code.

    Raises:
        ConfigError: a folder is no evaluation, is unfinished, or has other problems.
    """
    assert options.compare is not None
    names = [path.resolve().name for path in options.compare]
    if names[0] == names[1]:
        names = [f"{path.resolve().parent.name}/{path.resolve().name}" for path in options.compare]
    before, after = (
        read_side(path, name) for path, name in zip(options.compare, names, strict=True)
    )
    comparison = compare(before, after, seed=options.seed)
    folder = RunFolder.create(options.run_dir, "compare-aime", options.model_dump(mode="json"))
    row = {**msgspec.to_builtins(comparison), "verdict": comparison.verdict()}
    path = folder.path / COMPARISON
    write_whole(path, dump(row, indent=1) + "\n")
    report = write_page(folder, _page(comparison, before, after))
    print(comparison.verdict())
    for name, found in comparison.differences.items():
        print(f"{name}: {described(found)}")
        if found.worst != found.best:
            print(
                f"  with lost attempts against or for the change:"
                f" {100 * found.worst:+.1f} to {100 * found.best:+.1f} points"
            )
    for side in (before, after):
        print(f"{side.name}: {side.equation}")
    for sentence in comparison.unlike:
        print(f"- not the same: {sentence}")
    print(f"{path}, {report}")
    return 0


def read_side(path: Path, name: str) -> Side:
    """An evaluation that has ended, under a name for the report.

    Raises:
        ConfigError: if it is none, or is not complete.
    """
    folder = RunFolder.open(path)
    problems = read_problems(path)
    config = folder.read_config()
    journal = open_journal(path)
    rows = journal.rows()
    k = config.get("n_samples_per_eval_prompt")
    if not isinstance(k, int):
        raise ConfigError(f"{folder.config}: no n_samples_per_eval_prompt; not an evaluation")
    try:
        table = by_problem(rows, problems, k)
        found = by_digest(problems)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    digests = {problem.id: problem.digest for problem in problems}
    return Side(
        name=name,
        path=path,
        config=config,
        problems=found,
        rows=rows,
        attempts={digests[name]: attempts for name, attempts in table.items()},
        equation=account(journal.attempts()).equation(),
    )


def compare(before: Side, after: Side, *, seed: int) -> Comparison:
    """
    Raises:
        ConfigError: if the two do not have the same problems.
    """
    sets = list(dict.fromkeys(problem.data for problem in after.problems.values()))
    groups = {
        name: {digest for digest, problem in after.problems.items() if problem.data == name}
        for name in sets
    }
    if len(sets) > 1:
        groups[ALL] = set(after.problems)
    if before.problems.keys() != after.problems.keys():
        odd = before.problems.keys() ^ after.problems.keys()
        first = min({**before.problems, **after.problems}[digest].id for digest in odd)
        raise ConfigError(
            f"{before.path} and {after.path} do not have the same problems: {len(odd)} are in one"
            f" alone, first {first}"
        )
    scores, differences = {}, {}
    for name, digests in groups.items():
        old = {d: before.attempts[d] for d in before.attempts if d in digests}
        new = {d: after.attempts[d] for d in old}
        scores[name] = (
            f"avg@{before.k} {points(avg_at_k(old).estimate)}",
            f"avg@{after.k} {points(avg_at_k(new).estimate)}",
        )
        try:
            differences[name] = paired_bootstrap(old, new, seed=seed)
        except TrialError as error:
            raise ConfigError(f"{before.path}, {after.path}: {error}") from None
    return Comparison(
        before=before.name,
        after=after.name,
        scores=scores,
        differences=differences,
        unlike=tuple(
            f"--{name.replace('_', '-')} {before.config.get(name)} and {after.config.get(name)}"
            for name in LIKE_FOR_LIKE
            if before.config.get(name) != after.config.get(name)
        ),
    )


def described(found: Difference) -> str:
    """`+3.3 points [-1.0, +7.6], p 0.12, paired over 30 problems`."""
    problems = f"paired over {found.tasks} problem{'s' * (found.tasks != 1)}"
    if found.stderr != found.stderr:
        return f"nothing can be said, {problems}"
    return (
        f"{100 * found.mean:+.1f} points [{100 * found.low:+.1f}, {100 * found.high:+.1f}],"
        f" p {found.p_value:.2g}, {problems}"
    )


def _page(comparison: Comparison, before: Side, after: Side) -> Page:
    rows = [
        (
            name,
            *comparison.scores[name],
            f"{100 * found.mean:+.1f}",
            f"{100 * found.stderr:.1f}",
            f"{100 * found.low:+.1f} to {100 * found.high:+.1f}",
            f"{found.p_value:.2g}",
            f"{100 * found.worst:+.1f} to {100 * found.best:+.1f}",
            f"{found.tasks}",
        )
        for name, found in comparison.differences.items()
    ]
    head = (
        "", "before", "after", "points", "standard error", "95 %", "p",
        "lost against or for it", "problems",
    )  # fmt: skip
    claim = [
        "The interval is for other problems of this kind: problems are drawn with replacement, each"
        " with all its attempts on both sides."
    ]
    claim += [f"Not the same on both sides: {sentence}." for sentence in comparison.unlike]
    ours = {problem.digest: problem for problem in before.problems.values()}
    names = {after.problems[digest].id: problem.id for digest, problem in ours.items()}
    renamed = [msgspec.structs.replace(row, task_id=names[row.task_id]) for row in after.rows]
    return Page(
        verdict=comparison.verdict(),
        cards=[(before.name, comparison.scores[_main(comparison)][0])]
        + [(after.name, comparison.scores[_main(comparison)][1])],
        notes=[
            f"{side.name}, method {side.config.get('method') or 'not known'}: {side.equation}."
            for side in (before, after)
        ],
        claim=claim,
        sections=[
            Section(
                id="difference",
                title="The difference",
                before=[
                    f"In points of avg@k, by {comparison.draws:,} draws of a paired bootstrap."
                ],
                table=Table(head, rows, len(rows)),
            )
        ],
        problems=problem_lines(list(ours.values()), [before.rows, renamed]),
        runs=[before.name, after.name],
    )


def _main(comparison: Comparison) -> str:
    return ALL if ALL in comparison.differences else next(iter(comparison.differences))
