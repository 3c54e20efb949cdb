"""The command that trains a method on this machine: options, folder, training, verdict, report.

A method's trainer brings its options, how they become a `Job`, and its texts:

    TRAINER = LocalTrainer(prog="tau:train", description=..., method="tau", options=TauOptions,
                           make_job=make_job, shipped=Path(__file__).parent / "policy")
    exit_code = TRAINER.run(argv)
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from turnwise.arguments import parse_args
from turnwise.config import ConfigError
from turnwise.local.loop import Interrupted, train
from turnwise.local.options import SHIPPED, TrainOptions
from turnwise.local.policy import LoadedPolicy, load_policy
from turnwise.local.threads import choose_threads, set_threads
from turnwise.local.trainer import Job
from turnwise.report import write_report
from turnwise.run.folder import RunFolder
from turnwise.run.summary import Summary

OptionsT = TypeVar("OptionsT", bound=TrainOptions)

MAY_CHANGE = frozenset(
    {"config", "resume", "run_dir", "num_rollout", "save_interval", "threads", "dry_run"}
)
"""Options that a resumed run may be given anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTrainer(Generic[OptionsT]):
    """What a method brings to the command.

    Attributes:
        prog: The command's name: `tau:train`.
        description: What it does and its exit codes, for `--help`.
        method: Names the run folder.
        options: The options' class.
        make_job: Tasks, episode and texts that go with the options; called in the event loop that
            the run lives in, so it may start what the episodes need.
        shipped: The folder of the policy that `--hf-checkpoint shipped` names.
        require_tools: Whether the policy's chat template must show tools; may depend on options.
        may_change: Options of the method that a resumed run may be given anew.
    """

    prog: str
    description: str
    method: str
    options: type[OptionsT]
    make_job: Callable[[OptionsT, LoadedPolicy], Awaitable[Job[Any]]]
    shipped: Path
    require_tools: bool | Callable[[OptionsT], bool] = True
    may_change: frozenset[str] = frozenset()

    def run(self, argv: Sequence[str]) -> int:
        """Reads options, trains, prints the verdict; returns the exit code.

        Raises:
            ConfigError, PreflightError, RunError: see `turnwise.command`.
        """
        options = self._options(argv)
        if options.dry_run:
            print(options.model_dump_json(indent=2))
            return 0
        started = time.perf_counter()
        name, tools = options.hf_checkpoint, self.require_tools
        policy = load_policy(
            str(self.shipped) if name == SHIPPED else name,
            device=options.device,
            require_tools=tools if isinstance(tools, bool) else tools(options),
        )
        return asyncio.run(self._train(options, policy, started))

    async def _train(self, options: OptionsT, policy: LoadedPolicy, started: float) -> int:
        options = self._threaded(options, policy)
        job = await self.make_job(options, policy)
        try:
            folder = self._folder(options)
            announce(options, job, folder)
            try:
                summary = await train(options, job, policy, folder)
            except Interrupted as interrupted:
                print(f"interrupted {interrupted}; go on with --resume --run-dir {folder.path}")
                return 130
            finally:
                _report(folder)
        finally:
            if job.close is not None:
                await job.close()
        tell(summary)
        print(
            f"{time.perf_counter() - started:.0f} s. Run folder {folder.path},"
            f" report {folder.report}"
        )
        return 0

    def _options(self, argv: Sequence[str]) -> OptionsT:
        options = self._parse(argv, {})
        if options.resume:
            assert options.run_dir is not None
            started = RunFolder.open(options.run_dir).read_config()
            known = {name: started[name] for name in self.options.model_fields if name in started}
            for name in ("config", "resume", "run_dir", "dry_run"):
                known.pop(name, None)
            options = self._parse(argv, known)
        if options.backend == "slime":
            raise ConfigError("backend slime is chosen on the command line, --backend slime")
        return options

    def _parse(self, argv: Sequence[str], defaults: Mapping[str, Any]) -> OptionsT:
        return parse_args(
            self.options, argv, prog=self.prog, description=self.description, defaults=defaults
        )

    def _threaded(self, options: OptionsT, policy: LoadedPolicy) -> OptionsT:
        """The options with the thread count that the run keeps, which is set."""
        if options.resume:
            assert options.run_dir is not None
            folder = RunFolder.open(options.run_dir)
            folder.refuse_changes(
                options.model_dump(mode="json"),
                may_change=MAY_CHANGE | self.may_change,
                because="a resumed run keeps its options",
            )
            threads = int(folder.read_config()["threads"])
        else:
            threads = options.threads or choose_threads(policy.model).threads
        set_threads(threads)
        return options.model_copy(update={"threads": threads})

    def _folder(self, options: OptionsT) -> RunFolder:
        if options.resume:
            assert options.run_dir is not None
            return RunFolder.open(options.run_dir)
        return RunFolder.create(options.run_dir, self.method, options.model_dump(mode="json"))


def announce(options: TrainOptions, job: Job[Any], folder: RunFolder) -> None:
    """Says what is about to be done, with what and where."""
    episodes = options.rollout_batch_size * options.n_samples_per_prompt
    evaluation = len(job.eval_tasks) * options.n_samples_per_eval_prompt
    print(
        f"Training the {Path(options.hf_checkpoint).name} policy on {len(job.train_tasks)}"
        f" {job.about}: {options.num_rollout} steps of {options.rollout_batch_size} prompts"
        f" x {options.n_samples_per_prompt} rollouts = {episodes} episodes; evaluated before and"
        f" after on {len(job.eval_tasks)} {job.split} tasks x"
        f" {options.n_samples_per_eval_prompt} trials = {evaluation} episodes."
    )
    services = "".join(f"{name} {value}, " for name, value in job.services.items())
    print(
        _sentence(
            f"{services}seed {options.seed}, {options.threads} torch thread(s), device"
            f" {options.device}. Run folder {folder.path}"
        )
    )


def tell(summary: Summary) -> None:
    """Prints the verdict, what fixed behaviours score, who took part, and what it means."""
    print()
    print(summary.verdict())
    for name, score in summary.baselines.items():
        print(_sentence(f"{name} scores {100 * score:.1f} % here."))
    if summary.services:
        print(_sentence("; ".join(f"{name}: {value}" for name, value in summary.services.items())))
    for sentence in summary.claim:
        print(f"- {sentence}")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _report(folder: RunFolder) -> None:
    """Writes the report, also of a run that broke off; a report that fails hides no other error."""
    try:
        write_report(folder.path)
    except ConfigError as error:
        print(f"no report: {error}", file=sys.stderr)
