"""The tau trainer on this machine: which tasks, which policy, and what its result means."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import tokendelta
import torch
from pydantic import Field, model_validator
from turnwise.config import ConfigError, parse_args
from turnwise.episode import Episode
from turnwise.local.loop import Interrupted, train
from turnwise.local.options import TrainOptions
from turnwise.local.policy import LoadedPolicy, load_policy
from turnwise.local.threads import choose_threads, set_threads
from turnwise.local.trainer import Job
from turnwise.policy import Policy
from turnwise.report import write_report
from turnwise.rollout import Rollout
from turnwise.run.folder import RunFolder
from turnwise.taubench import Task, load_tasks, noop_baseline, training_tasks
from turnwise.taubench.episode import default_services, run_episode
from turnwise.taubench.splits import family_splits

SHIPPED = "shipped"
SHIPPED_POLICY = Path(__file__).parent / "policy"

PROG = "tau:train"
DESCRIPTION = (
    "Trains a tool-calling agent on tau-bench retail tasks with GRPO, on this machine. Without"
    " options: the shipped policy on its task family, in minutes on a CPU. Exit codes: 0 ok, 2"
    " usage or configuration, 4 run failed, 130 interrupted."
)

SPLIT_CLAIM = {
    "held-out": "Held-out and training tasks are real tau-bench retail tasks that share no order"
    " and no customer; no setting was chosen on the held-out ones.",
    "tune": "Tune and training tasks are real tau-bench retail tasks that share no order and no"
    " customer; settings were chosen on the tune tasks, so the result flatters.",
    "dev": "These are upstream's dev tasks.",
    "test": "These are upstream's test tasks.",
}
FAMILY_CLAIM = (
    "Only tasks whose one write is cancelling a pending order or returning items of a delivered"
    " one: 168 of the 500 training tasks.",
    "The prompt is compact: five tools, shortened orders, no policy document. The score is not"
    " comparable with published tau-bench scores.",
    "The customer is simulated offline: it says everything at once, and leaves after the agent's"
    " first statement.",
)
SHIPPED_CLAIM = (
    "The policy was warmed up on synthetic dialogues, half of them with a typical mistake. A rise"
    " shows that the mistakes were unlearnt on unseen tasks, not that a new skill was found."
)
FULL_CLAIM = (
    "The prompt is the policy document with all tools of the domain.",
    "The customer is simulated offline and plays no conditional scenes; scores with it are for"
    " comparing checkpoints, not for comparison with published ones.",
)


class TauOptions(TrainOptions):
    """Options of the tau trainer on this machine."""

    hf_checkpoint: str = Field(default=SHIPPED, min_length=1)
    """The policy to start from: `shipped`, a folder with weights and tokenizer, or `smollm2`."""
    num_rollout: int = Field(default=24, ge=0)
    """Training steps; each samples, scores and trains on fresh rollouts."""
    lr: float = Field(default=3e-4, gt=0)
    """Learning rate of AdamW, constant; 1e-6 is usual for policies of billions of parameters."""
    eps_clip_high: float | None = Field(default=0.28, gt=0)
    """The policy's ratio is held below 1 + eps-clip-high."""
    calculate_per_token_loss: bool = True
    """One mean over all tokens of an optimiser step instead of one per rollout."""
    backend: Literal["local", "slime"] = "local"
    """This machine, or a GPU cluster, which has options of its own: --backend slime --help."""
    env: Literal["retail", "airline"] = "retail"
    """The domain of the tasks."""
    prompt: Literal["compact", "full"] = "compact"
    """What the policy is shown: a short prompt with five tools, or the whole policy document."""
    eval_split: Literal["held-out", "tune", "dev", "test"] = "held-out"
    """Tasks to evaluate on: held-out and tune with the compact prompt, dev and test with full."""
    include_failing_ground_truth: bool = False
    """Train also on tasks whose annotated write fails (full prompt)."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the policy."""

    @model_validator(mode="after")
    def _check_tasks(self) -> TauOptions:
        if self.prompt == "compact" and self.env != "retail":
            raise ValueError(f"prompt compact shows retail alone; use --prompt full for {self.env}")
        if (self.prompt == "compact") != (self.eval_split in ("held-out", "tune")):
            choices = "held-out or tune" if self.prompt == "compact" else "dev or test"
            raise ValueError(
                f"prompt {self.prompt} evaluates on {choices}, found --eval-split {self.eval_split}"
            )
        if self.env == "airline":
            raise ValueError("airline has no training tasks; it can be evaluated, not trained on")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device cuda: this torch finds no GPU")
        return self


def train_here(argv: Sequence[str]) -> int:
    """The command: reads options, trains, prints the verdict; returns the exit code."""
    options = parse_args(TauOptions, argv, prog=PROG, description=DESCRIPTION)
    if options.resume:
        options = _as_started(options, argv)
    if options.backend == "slime":
        raise ConfigError("backend slime is chosen on the command line, --backend slime")
    if options.dry_run:
        print(options.model_dump_json(indent=2))
        return 0
    started = time.perf_counter()
    name = options.hf_checkpoint
    policy = load_policy(str(SHIPPED_POLICY) if name == SHIPPED else name, device=options.device)
    folder, options = _folder(options, policy)
    job = make_job(options, policy)
    _announce(options, job, folder)
    try:
        summary = asyncio.run(train(options, job, policy, folder))
    except Interrupted as interrupted:
        print(f"interrupted {interrupted}; go on with --resume --run-dir {folder.path}")
        return 130
    finally:
        _report(folder)
    print()
    print(summary.verdict())
    print(f"Doing nothing scores {100 * summary.noop_baseline:.1f} % here. User: {summary.user}.")
    for sentence in summary.claim:
        print(f"- {sentence}")
    print(
        f"{time.perf_counter() - started:.0f} s. Run folder {folder.path}, report {folder.report}"
    )
    return 0


def _report(folder: RunFolder) -> None:
    """Writes the report, also of a run that broke off; a report that fails hides no other error."""
    try:
        write_report(folder.path)
    except ConfigError as error:
        print(f"no report: {error}", file=sys.stderr)


def make_job(options: TauOptions, policy: LoadedPolicy) -> Job[Task]:
    """Tasks, episode and claim that go with the options."""
    services = default_services(options.prompt)
    train_tasks, eval_tasks = _tasks(options)
    profile = tokendelta.Profile.from_tokenizer(
        policy.tokenizer, tools=services.view.tools(options.env)
    )
    _check_room(options, profile, services.view.system(options.env))

    async def run(rollout: Rollout[Task], sampler: Policy) -> Episode:
        return await run_episode(
            rollout.task,
            sampler,
            services,
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
            seed=rollout.seed,
        )

    return Job(
        method="tau",
        train_tasks=_by_id(train_tasks),
        eval_tasks=_by_id(eval_tasks),
        run_episode=run,
        profile=profile,
        tool_format="qwen25",
        user=services.user().name,
        noop_baseline=noop_baseline(eval_tasks),
        claim=_claim(options),
        split=options.eval_split,
    )


def _claim(options: TauOptions) -> tuple[str, ...]:
    """What the result shows and what it does not, for these options."""
    return (
        SPLIT_CLAIM[options.eval_split],
        *(FAMILY_CLAIM if options.prompt == "compact" else FULL_CLAIM),
        *((SHIPPED_CLAIM,) if options.hf_checkpoint == SHIPPED else ()),
    )


def _check_room(options: TauOptions, profile: tokendelta.Profile, system: str) -> None:
    """Raises ConfigError where the system prompt leaves no room for a turn."""
    session = tokendelta.Session(profile)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": ""}]
    prompt = session.start(messages)
    assert not isinstance(prompt, tokendelta.Overflow)
    needed = len(prompt) + options.rollout_max_response_len
    if needed > options.rollout_max_context_len:
        raise ConfigError(
            f"--rollout-max-context-len {options.rollout_max_context_len}: system prompt and tools"
            f" take {len(prompt)} tokens, one turn {options.rollout_max_response_len}; give at"
            f" least {needed}, and room for the conversation"
        )


def _tasks(options: TauOptions) -> tuple[Sequence[Task], Sequence[Task]]:
    if options.prompt == "compact":
        splits = family_splits()
        return splits.train, splits.held_out if options.eval_split == "held-out" else splits.tune
    tasks = load_tasks(options.env, "train")
    if not options.include_failing_ground_truth:
        tasks = training_tasks(tasks)
    return tasks, load_tasks(options.env, options.eval_split)


def _by_id(tasks: Sequence[Task]) -> Mapping[str, Task]:
    return {task.id: task for task in tasks}


def _folder(options: TauOptions, policy: LoadedPolicy) -> tuple[RunFolder, TauOptions]:
    """The run's folder, and the options with the thread count that the run keeps."""
    if options.resume:
        assert options.run_dir is not None
        folder = RunFolder.open(options.run_dir)
        _refuse_changes(folder, options)
        threads = int(folder.read_config()["threads"])
    else:
        threads = options.threads or choose_threads(policy.model).threads
        folder = None
    options = options.model_copy(update={"threads": threads})
    set_threads(threads)
    if folder is None:
        folder = RunFolder.create(options.run_dir, "tau", options.model_dump(mode="json"))
    return folder, options


def _as_started(options: TauOptions, argv: Sequence[str]) -> TauOptions:
    """The options that the run was started with, where the command line says nothing else."""
    assert options.run_dir is not None
    started = RunFolder.open(options.run_dir).read_config()
    known = {name: started[name] for name in TauOptions.model_fields if name in started}
    for name in ("config", "resume", "run_dir", "dry_run"):
        known.pop(name, None)
    return parse_args(TauOptions, argv, prog=PROG, description=DESCRIPTION, defaults=known)


_MAY_CHANGE = {"config", "resume", "run_dir", "num_rollout", "save_interval", "threads", "dry_run"}


def _refuse_changes(folder: RunFolder, options: TauOptions) -> None:
    before, now = folder.read_config(), options.model_dump(mode="json")
    for name, value in now.items():
        if name not in _MAY_CHANGE and before.get(name) != value:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{flag} is {value!r}, the run in {folder.path} was started with"
                f" {before.get(name)!r}: a resumed run keeps its options"
            )


def _announce(options: TauOptions, job: Job[Task], folder: RunFolder) -> None:
    episodes = options.rollout_batch_size * options.n_samples_per_prompt
    evaluation = len(job.eval_tasks) * options.n_samples_per_eval_prompt
    print(
        f"Training the {Path(options.hf_checkpoint).name} policy on {len(job.train_tasks)}"
        f" {options.env} tasks: {options.num_rollout} steps of {options.rollout_batch_size} prompts"
        f" x {options.n_samples_per_prompt} rollouts = {episodes} episodes; evaluated before and"
        f" after on {len(job.eval_tasks)} {options.eval_split} tasks x"
        f" {options.n_samples_per_eval_prompt} trials = {evaluation} episodes."
    )
    print(
        f"Prompt {options.prompt}, user {job.user}, seed {options.seed}, {options.threads} torch"
        f" thread(s), device {options.device}. Run folder {folder.path}"
    )
