"""One evaluation: asks what is missing, grades it, then says what the attempts say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from turnwise.arguments import parse_args
from turnwise.command import PreflightError, RunError
from turnwise.config import ConfigError
from turnwise.episode import BoundaryError, Episode
from turnwise.evaluation.journal import split_rollout_id
from turnwise.evaluation.playing import missing_rollouts, play_trials
from turnwise.rollout import Rollout
from turnwise.run.folder import RunFolder
from turnwise.run.jsonl import append_row, read_rows
from turnwise.run.metrics import EvalRow, as_row, metric_means
from turnwise.run.summary import write_summary

from apps.evaluators.aime.attempts import (
    AttemptRow,
    open_journal,
    read_problems,
    write_problems,
)
from apps.evaluators.aime.compare import compare_here
from apps.evaluators.aime.grading import Grader, graded_row
from apps.evaluators.aime.options import PLAIN, EvalOptions
from apps.evaluators.aime.page import results_page, write_page
from apps.evaluators.aime.playing import Player
from apps.evaluators.aime.policies import make_player, read_method_options
from apps.evaluators.aime.problems import SAMPLE, Problem, load_data
from apps.evaluators.aime.rescore import rescore_here
from apps.evaluators.aime.results import Results, lines, shared_summary, summarise, write_results

PROG = "aime:eval"
DESCRIPTION = (
    "Evaluates a model or a method on AIME, or on any problems with one right answer: avg@k, pass@k"
    " and maj@k with errors clustered by problem, and coverage. Compares two evaluations, and"
    " grades saved outputs again. Exit codes: 0 ok, 2 usage or configuration, 3 a service does not"
    " answer, 4 run failed, 130 interrupted."
)
CLAIM_K = 32
"""Attempts that a claim on AIME needs."""
MAY_CHANGE = {
    "config", "resume", "run_dir", "concurrency", "engine_rows", "threads", "device", "dry_run",
    "api_key_env", "base_url", "sglang_url", "read_price", "write_price", "method_config",
}  # fmt: skip
"""Options that may differ when an evaluation is resumed: where it runs, not what it asks."""
SERVICES = "services.jsonl"
PROGRESS_LINES = 10
"""Lines about the progress of an evaluation."""


def evaluate_here(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    options = parse_args(EvalOptions, argv, prog=PROG, description=DESCRIPTION)
    if options.dry_run:
        print(options.model_dump_json(indent=2))
        return 0
    if options.compare is not None:
        return compare_here(options)
    if options.rescore:
        return rescore_here(options)
    evaluation = Evaluation(options)
    try:
        asyncio.run(evaluation.run())
    except KeyboardInterrupt:
        if evaluation.folder is None:
            raise
        print(
            f"interrupted; go on with --resume --run-dir {evaluation.folder.path} and the same"
            " options"
        )
        return 130
    return evaluation.conclude()


class Evaluation:
    """Everything from the options to the results.

    Attributes:
        folder: None until the player is ready.
    """

    def __init__(self, options: EvalOptions) -> None:
        """Raises ConfigError for data, options and a folder to go on with."""
        self.options = options
        self.problems = load_data(
            options.data, input_key=options.input_key, label_key=options.label_key
        )
        self.method_options = read_method_options(options.method, options.method_config)
        self.folder: RunFolder | None = self._opened() if options.resume else None

    async def run(self) -> None:
        """Asks whatever has no score yet, every data set in one event loop."""
        resumed = self.folder
        missing = self._missing()
        if resumed is not None and not missing:
            print(f"Every attempt in {resumed.path} has its score; nothing is asked")
            return
        player, tokenizer = await make_player(self.options, self.method_options)
        grader = Grader()
        try:
            await self._check(grader)
            self.folder = folder = resumed or self._created()
            options = self.options
            names = ", ".join(dict.fromkeys(problem.data for problem in self.problems))
            print(
                f"Evaluating {options.policy_name} ({options.method}) on {names}:"
                f" {len(self.problems)} problems, {options.n_samples_per_eval_prompt} times each;"
                f" {len(missing)} attempts to make. Folder {folder.path}"
            )
            asking = _Asking(player, grader, folder, len(missing))
            await play_trials(
                missing,
                asking.attempt,
                keep=asking.keep,
                folder=folder,
                tokenizer=tokenizer,
                concurrency=options.concurrency,
            )
        finally:
            if self.folder is not None and player.services():
                append_row(self.folder.path / SERVICES, player.services())
            await grader.close()
            await player.close()

    def conclude(self) -> int:
        """Writes and prints the results.

        Raises:
            RunError: if nothing was scored.
        """
        assert self.folder is not None
        folder, journal = self.folder, open_journal(self.folder.path)
        rows, tries = journal.rows(), journal.attempts()
        results = summarise(
            rows=rows,
            tries=tries,
            problems=self.problems,
            k=self.options.n_samples_per_eval_prompt,
            prices=(self.options.read_price, self.options.write_price),
            policy=self.options.policy_name,
            method=self.options.method,
            sampling=sampling_of(self.options),
            services=_services(folder.path / SERVICES),
            claim=claim_of(self.options, self.problems),
        )
        write_metrics(folder, results, tries)
        write_summary(folder, shared_summary(results, replayed=len(tries) - len(rows)))
        written = write_results(folder.path, results)
        report = write_page(folder, results_page(results, rows, self.problems))
        for line in lines(results):
            print(line)
        print(f"{written}, {report}")
        if not results.main.scored:
            errors = [row.ending.error for row in rows if row.ending.error]
            raise RunError(
                f"{folder.path}: no attempt was scored"
                f"{f', the first error: {errors[0]}' if errors else ''}; go on with --resume"
            )
        return 0

    async def _check(self, grader: Grader) -> None:
        """Raises PreflightError if labels that are no whole numbers can't be compared here."""
        if all(problem.label.lstrip("-").isdecimal() for problem in self.problems):
            return
        try:
            await grader.check()
        except BoundaryError as error:
            raise PreflightError(f"grading: {error}") from None

    def _missing(self) -> list[Rollout[Problem]]:
        folder = self.folder
        return missing_rollouts(
            {problem.id: problem for problem in self.problems},
            self.options.n_samples_per_eval_prompt,
            seed=self.options.seed,
            scored=open_journal(folder.path).scored() if folder is not None else (),
        )

    def _created(self) -> RunFolder:
        config = {**self.options.model_dump(mode="json"), "method_options": self.method_options}
        folder = RunFolder.create(self.options.run_dir, "eval-aime", config)
        write_problems(folder.path, self.problems)
        return folder

    def _opened(self) -> RunFolder:
        assert self.options.run_dir is not None
        folder = RunFolder.open(self.options.run_dir)
        folder.refuse_changes(
            self.options.model_dump(mode="json"),
            may_change=MAY_CHANGE,
            because="attempts of two settings do not mix",
        )
        before = folder.read_config().get("method_options")
        if before != self.method_options:
            raise ConfigError(
                f"--method-config: holds {self.method_options}, the evaluation in {folder.path} was"
                f" started with {before}: attempts of two settings do not mix"
            )
        if read_problems(folder.path) != self.problems:
            raise ConfigError(
                f"--data {' '.join(self.options.data)}: not the problems that the evaluation in"
                f" {folder.path} was started with; start a new one"
            )
        return folder


class _Asking:
    """Makes attempts; each is graded before it counts as ended."""

    def __init__(self, player: Player, grader: Grader, folder: RunFolder, total: int) -> None:
        self._player, self._grader = player, grader
        self._journal = open_journal(folder.path)
        self._rows: dict[str, AttemptRow] = {}
        self._total = total
        self._ended = self._lost = 0
        self._right = 0.0

    async def attempt(self, rollout: Rollout[Problem]) -> Episode:
        """Plays and grades: the episode has the grader's score, whatever the method's was."""
        played = await self._player.play(rollout)
        row = await graded_row(
            self._grader,
            rollout.task,
            split_rollout_id(rollout.rollout_id)[1],
            ending=played.ending,
            output=played.output,
            metrics=played.metrics,
            wall_s=played.wall_s,
        )
        self._rows[rollout.rollout_id] = row
        facts = {"label": row.label, "prediction": row.prediction, "graded by": row.by}
        return Episode(
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
            task_id=rollout.task_id,
            segments=played.segments,
            ending=row.ending,
            score=row.score,
            transcript=played.transcript,
            metrics=played.metrics,
            info={**facts, **played.info},
            wall_s=played.wall_s,
        )

    def keep(self, episode: Episode) -> None:
        """Writes the row of an attempt that has ended; now and then says how far it is."""
        self._journal.append(self._rows.pop(episode.rollout_id))
        self._ended += 1
        self._lost += episode.score is None
        self._right += episode.score or 0.0
        if self._ended % max(1, self._total // PROGRESS_LINES) == 0:
            scored = self._ended - self._lost
            share = f", {self._right / scored:.1%} right" if scored else ""
            lost = f", {self._lost} lost" if self._lost else ""
            print(f"{self._ended} of {self._total} attempts{share}{lost}", flush=True)


def write_metrics(folder: RunFolder, results: Results, tries: Sequence[AttemptRow]) -> None:
    """The one row of metrics.jsonl, as every evaluation has it."""
    main = results.main.avg.estimate
    scores: dict[str, list[float | None]] = {}
    for row in {(row.task_id, row.trial): row for row in tries}.values():
        scores.setdefault(row.task_id, []).append(row.score)
    folder.metrics.unlink(missing_ok=True)
    folder.append_metrics(
        as_row(
            EvalRow(
                step=0,
                reward_mean=main.mean,
                reward_stderr=main.stderr,
                coverage=results.main.coverage,
                ledger=results.ledger,
                endings=results.endings,
                metrics=metric_means(row.metrics for row in tries),
                baselines={},
                services={"method": results.method},
                service_totals=results.services[-1] if results.services else {},
                eval_s=results.seconds,
                scores=scores,
            )
        )
    )


def sampling_of(options: EvalOptions) -> dict[str, Any]:
    return {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": options.max_response_len,
        "seed": options.seed,
    }


def claim_of(options: EvalOptions, problems: Sequence[Problem]) -> tuple[str, ...]:
    """What the scores mean and what they do not."""
    told = []
    if options.method == PLAIN:
        told.append("Plain: each problem is one question to the model, and its answer is graded.")
    else:
        told.append(
            f"Method {options.method}: its frozen models and tools have their share in the score."
            " The same method with the untrained policy is the baseline of a training; a plain"
            " model under the same sampling that of the method."
        )
    if options.base_url is not None:
        told.append("Draws repeat as far as the endpoint keeps to the seed that it is sent.")
    if any(problem.data == SAMPLE for problem in problems):
        told.append("The built-in sample is generated; its score says nothing about AIME.")
    if options.n_samples_per_eval_prompt < CLAIM_K:
        told.append(
            f"k is {options.n_samples_per_eval_prompt}; a claim on AIME needs avg@{CLAIM_K}."
        )
    told.append("Where this score chose a checkpoint, other problems have to measure it.")
    return tuple(told)


def _services(path: Path) -> tuple[dict[str, float], ...]:
    """What each process of the evaluation counted of frozen models and tools."""
    try:
        rows = [msgspec.convert(row, dict[str, float]) for row in read_rows(path)]
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}; remove the file to do without") from None
    return tuple(rows)
