"""One evaluation, from the options to the results.

1. Rows, method and options are checked, and of a run that goes on that they are the same.
2. The checkpoint is read; the method's services, the policy's endpoint and the grader are asked.
3. The folder is made, so that what was corrected before can be given again as it was.
4. What has no score yet is played. A trial is graded, then its trace is written, then its row.
5. What all trials say is written and told, also where some were lost. A run in which nothing was
   scored, or no first prompt fits the context, or in which everybody in flight is lost twice over,
   has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.command import RunError, StopRun
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, Ending, Episode
from turnwise.evaluation.benchmark import Benchmark, Grade, with_ids
from turnwise.evaluation.compare import Other, check_same_tasks, read_other
from turnwise.evaluation.folder import About, EvalFolder
from turnwise.evaluation.journal import TrialRow, trial_row
from turnwise.evaluation.options import MAY_CHANGE, SharedOptions
from turnwise.evaluation.policies import (
    Loaded,
    ask_policy,
    close_policy,
    load,
    make_policy,
    watched,
)
from turnwise.evaluation.results import conclude
from turnwise.evaluation.rollouts import missing_rollouts, play_trials
from turnwise.evaluation.tasks import TaskRow, check_tasks
from turnwise.method import Method, Services, method_name, play
from turnwise.own_code import row_task
from turnwise.policy import AnyPolicy, Policy
from turnwise.report import write_eval_report
from turnwise.rollout import Rollout
from turnwise.run.folder import forget
from turnwise.run.lock import locked
from turnwise.run.watching import StatusWriter
from turnwise.stopping import MIN_LOST_GROUPS, nothing_scored

PROGRESS_LINES = 10
"""Lines about the progress of an evaluation."""


class Evaluation:
    """
    Attributes:
        folder: None until everything is ready to be played.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        options: SharedOptions,
        method: Method[Any, Any],
        config: Mapping[str, Any],
    ) -> None:
        """
        Args:
            method: Not opened.
            config: What config.json holds.

        Raises:
            ConfigError: rows or options are wrong, or the folder to go on with is of others.
        """
        self.benchmark, self.options, self.method, self._config = benchmark, options, method, config
        benchmark.check(options, method)
        rows = with_ids(benchmark.rows(options, method))
        self.tasks = [benchmark.task(row) for row in rows.values()]
        check_tasks(self.tasks)
        self._method_tasks = {name: row_task(method, row) for name, row in rows.items()}
        self._other = _other(options, self.tasks)
        self.folder: EvalFolder | None = self._opened() if options.resume else None

    def run(self) -> int:
        """Plays what is missing and says what all trials say; returns the exit code.

        Raises:
            ConfigError, PreflightError, RunError: see `turnwise.command`.
        """
        if self.folder is not None and not self._missing():
            print(f"Every trial in {self.folder.run.path} has its score; nothing is played")
            with locked(self.folder.run.path):
                return self._conclude(self.folder)
        loaded = load(self.options, self.method)
        try:
            return asyncio.run(self._run(loaded))
        except KeyboardInterrupt:
            if self.folder is None:
                raise
            print(f"interrupted; {self._go_on(self.folder)}")
            return 130

    async def _run(self, loaded: Loaded | None) -> int:
        policy = make_policy(self.options, self.method, loaded)
        try:
            await self._ask(policy)
            folder = self.folder or await self._created(policy)
            with locked(folder.run.path):
                self.folder = folder
                # Another process may have been at work in it until now.
                missing = self._missing()
                self._announce(policy, folder, len(missing))
                await self._play(folder, policy, missing)
                return self._conclude(folder)
        finally:
            await self.benchmark.close()
            await self.method.close()
            await close_policy(policy)

    async def _ask(self, policy: AnyPolicy) -> None:
        """Every service that the run needs."""
        await ask_policy(self.options, self.method, policy)
        await self.method.open(Services(policy=policy if isinstance(policy, Policy) else None))
        await self.benchmark.open(self.tasks)

    async def _play(
        self, folder: EvalFolder, policy: AnyPolicy, missing: Sequence[Rollout[Any]]
    ) -> None:
        # What an evaluation that goes on has said before holds no more.
        forget(folder.run.summary)
        forget(folder.run.metrics)
        player = _Player(self, folder, policy, len(missing))
        try:
            with StatusWriter(folder.run.path, backend="evaluation") as status:
                status.stage(f"playing {len(missing)} trials")
                await play_trials(
                    missing,
                    player.play,
                    keep=player.keep,
                    folder=folder.run,
                    tokenizer=policy.profile.tokenizer if isinstance(policy, Policy) else None,
                    concurrency=self.options.concurrency,
                )
        except StopRun as stop:
            write_eval_report(folder.run.path)
            done, asked = len(folder.journal.scored()), len(self.tasks) * self.options.k
            raise StopRun(
                f"{stop}; {done} of {asked} trials have their score, {self._go_on(folder)}"
            ) from None
        finally:
            folder.add_services(self.method.metrics())

    def _conclude(self, folder: EvalFolder) -> int:
        options = self.options
        summary = conclude(
            folder,
            self.benchmark,
            seed=options.seed,
            prices=(options.read_price, options.write_price),
            other=self._other,
        )
        if problem := nothing_scored(folder.journal.rows()):
            raise RunError(f"{folder.run.path}: {problem}; {self._go_on(folder)}")
        if not summary.measured:
            raise RunError(f"{folder.run.path}: nothing was measured: {summary.unsampled}")
        return 0

    def _missing(self) -> list[Rollout[Any]]:
        return missing_rollouts(
            self._method_tasks,
            self.options.k,
            seed=self.options.seed,
            scored=() if self.folder is None else self.folder.journal.scored(),
            work=self.method.work,
        )

    async def _created(self, policy: AnyPolicy) -> EvalFolder:
        benchmark, options, method = self.benchmark, self.options, self.method
        baselines = await benchmark.baselines(method, self._method_tasks, policy)
        about = About(
            title=benchmark.title(options, method),
            policy=options.policy_name,
            method=str(self._config["method"]),
            k=options.k,
            players=dict(method.players()),
            baselines=dict(baselines),
            compared=tuple(method.compared),
            # After the baselines, whose numbers are in them.
            pictures=tuple(method.pictures()),
            claim=benchmark.claim(options, method, self.tasks),
        )
        name = f"eval-{benchmark.name or method_name(type(method))}"
        return EvalFolder.create(options.run_dir, name, self._config, about, self.tasks)

    def _opened(self) -> EvalFolder:
        assert self.options.run_dir is not None
        folder = EvalFolder.open(self.options.run_dir)
        section = method_name(type(self.method))
        own = {f"{section}.{name}" for name in type(self.method).may_change}
        folder.run.refuse_changes(
            self._config, may_change=MAY_CHANGE | own, because="trials of two settings do not mix"
        )
        if folder.tasks != self.tasks:
            raise ConfigError(
                f"--run-dir {folder.run.path}: the rows are not those that the evaluation was"
                " started with; start a new one"
            )
        return folder

    def _announce(self, policy: AnyPolicy, folder: EvalFolder, missing: int) -> None:
        about = folder.about
        players = "".join(f"{role} {name}, " for role, name in about.players.items())
        reads = ""
        if isinstance(policy, Policy) and self.method.tools():
            given = self.method.options.tool_format is not None
            reads = f"tool format {policy.tool_format}"
            reads += "" if given else " (found in the chat template)"
            reads += ", "
        print(
            f"Evaluating {about.policy} ({about.method}) on {about.title}: {len(self.tasks)} tasks"
            f" x {about.k} trials; {missing} to play. {players}{reads}folder {folder.run.path}"
        )

    def _go_on(self, folder: EvalFolder) -> str:
        return f"go on with --resume --run-dir {folder.run.path}"


class _Player:
    """Plays trials; each is graded before it counts as ended."""

    def __init__(
        self, evaluation: Evaluation, folder: EvalFolder, policy: AnyPolicy, total: int
    ) -> None:
        self._benchmark, self._method = evaluation.benchmark, evaluation.method
        self._name = evaluation.options.method
        self._tasks = {task.id: task for task in evaluation.tasks}
        self._limit = max(MIN_LOST_GROUPS, 2 * evaluation.options.concurrency)
        self._folder, self._policy, self._total = folder, policy, total
        self._graded: dict[str, dict[str, Any]] = {}
        self._lost: list[TrialRow] = []
        self._ended = self._scored = 0
        self._sum = 0.0

    async def play(self, rollout: Rollout[Any]) -> Episode:
        self._check_lost()
        policy, engine = watched(self._policy, rollout.rollout_id)
        episode = await play(self._method, rollout, policy)
        if engine is not None:
            engine.check(self._name)
        if not self._benchmark.grades:
            return episode
        return await self._grade(self._tasks[rollout.group_id], episode)

    def keep(self, episode: Episode) -> None:
        """Writes the row of a trial that has ended; now and then says how far it is.

        Raises:
            StopRun: everybody in flight was lost twice over.
        """
        kept = {"output": self._benchmark.output(episode)}
        row = trial_row(episode, **self._graded.pop(episode.rollout_id, kept))
        self._folder.journal.append(row)
        self._ended += 1
        if row.score is None:
            self._lost.append(row)
        else:
            self._lost.clear()
            self._scored += 1
            self._sum += row.score
        if self._ended % max(1, self._total // PROGRESS_LINES) == 0:
            mean = f", mean score {self._sum / self._scored:.3f}" if self._scored else ""
            lost = self._ended - self._scored
            print(
                f"{self._ended} of {self._total} trials{mean}{f', {lost} lost' if lost else ''}",
                flush=True,
            )
        self._check_lost()

    def _check_lost(self) -> None:
        if self._limit <= len(self._lost) < self._total:
            raise StopRun(f"in a row, {nothing_scored(self._lost)}")

    async def _grade(self, task: TaskRow, episode: Episode) -> Episode:
        """The episode with the benchmark's score, whatever the method's was."""
        output = final_text(episode)
        grade = Grade(score=None)
        ending = episode.ending
        if ending.by_policy:
            try:
                grade = await self._benchmark.grade(task, output)
                if grade.score is None:
                    ending = Ending.lost(BoundaryError(Boundary.JUDGE, grade.error))
            except BoundaryError as error:
                ending = Ending.lost(error)
        metrics = dict(episode.metrics)
        if episode.score is not None and type(self._method) not in self._benchmark.methods.values():
            metrics["method_score"] = episode.score
        facts = {"label": task.label, "graded by": grade.by, **grade.info}
        self._graded[episode.rollout_id] = {
            "output": output,
            "vote": grade.vote,
            "by": grade.by,
            "info": dict(grade.info),
        }
        return replace(
            episode,
            ending=ending,
            score=grade.score,
            metrics=metrics,
            info={**facts, **episode.info},
        )


def final_text(episode: Episode) -> str:
    """What an episode answers: `info["answer"]`, else its policy's last message."""
    answer = episode.info.get("answer")
    if isinstance(answer, str):
        return answer
    for message in reversed(episode.transcript):
        if message.get("role") == "assistant":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""


def _other(options: SharedOptions, tasks: Sequence[TaskRow]) -> Other | None:
    if options.compare_with is None:
        return None
    other = read_other(options.compare_with, "--compare-with")
    check_same_tasks(other, tasks)
    return other
