"""One evaluation: plays what is missing, then says what the trials say."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tokendelta
from turnwise.config import ConfigError, parse_args
from turnwise.engine import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.episode import Episode
from turnwise.ledger import Ledger
from turnwise.local.policy import load_policy
from turnwise.local.threads import choose_threads, set_threads
from turnwise.policy import Policy
from turnwise.report import write_eval_report
from turnwise.rollout import Rollout, derive_seed, run_rollouts
from turnwise.run.folder import RunFolder
from turnwise.run.metrics import EvalRow, as_row, metric_means
from turnwise.run.summary import EvalSummary, write_summary
from turnwise.run.traces import EVAL_TRACES, trace_row
from turnwise.taubench import Task, load_tasks, noop_baseline
from turnwise.taubench.chat_episode import run_chat_episode
from turnwise.taubench.episode import Services, default_services, run_episode
from turnwise.taubench.splits import family_splits
from turnwise.trials import TrialError, by_task, mean_score, pass_hat_k

from apps.evaluators.tau.endpoint import check_endpoint, make_client
from apps.evaluators.tau.journal import Journal, as_episode, as_trials, rollout_id
from apps.evaluators.tau.options import EvalOptions

PROG = "tau:eval"
DESCRIPTION = (
    "Evaluates a policy on tau-bench: pass^1..k with errors clustered by task, coverage, and what"
    " doing nothing scores. Exit codes: 0 ok, 2 usage or configuration, 3 the endpoint does not"
    " answer, 4 run failed, 130 interrupted."
)
CLAIM = {
    "full": (
        "Upstream's task: the policy document and all tools of the domain.",
        "The customer is simulated offline: it says what its instruction says and plays no"
        " conditional scenes. Scores with it compare checkpoints; published scores have another"
        " customer.",
    ),
    "compact": (
        "The compact prompt: five tools, shortened orders, no policy document. The score is not"
        " comparable with published tau-bench scores.",
        "The customer is simulated offline: it says everything at once, and leaves after the"
        " agent's first statement.",
    ),
}
NEVER_COMPARED = {
    "config", "resume", "run_dir", "concurrency", "engine_rows", "threads", "dry_run", "api_key_env"
}  # fmt: skip
"""Options that may differ when an evaluation is resumed."""

Play = Callable[[Rollout[Task]], Awaitable[Episode]]


@dataclass(frozen=True, slots=True)
class Player:
    """Plays episodes of one policy, shows its tokens as text, and frees what it holds."""

    play: Play
    tokenizer: Any
    close: Callable[[], Awaitable[None]]


def evaluate_here(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    options = parse_args(EvalOptions, argv, prog=PROG, description=DESCRIPTION)
    if options.dry_run:
        print(options.model_dump_json(indent=2))
        return 0
    tasks = {task.id: task for task in _tasks(options)}
    services = default_services(options.view)
    if options.max_turns is not None:
        services = replace(services, max_turns=options.max_turns)
    if options.base_url is not None:
        asyncio.run(check_endpoint(options, services))
    folder = _folder(options)
    journal = Journal(folder.path / "trials.jsonl")
    missing = _missing(options, tasks, journal)
    print(
        f"Evaluating {options.policy_name} on {len(tasks)} {options.env} {options.task_split} tasks"
        f" x {options.trials} trials; {len(missing)} to play. Prompt {options.view}, user"
        f" {services.user().name}. Folder {folder.path}"
    )
    try:
        if missing:
            asyncio.run(_play(options, services, missing, journal, folder))
    except KeyboardInterrupt:
        print(f"interrupted; go on with --resume --run-dir {folder.path} and the same options")
        return 130
    summary = summarise(options, tasks, services, journal, folder)
    report = write_eval_report(folder.path)
    print(summary.verdict())
    for k, estimate in enumerate(summary.pass_hat, start=1):
        print(f"pass^{k}  {estimate}  ({estimate.tasks} tasks with at least {k} scored trials)")
    print(f"coverage {summary.coverage:.3f}")
    for name, score in summary.baselines.items():
        print(f"{name} scores {score:.3f}")
    for sentence in summary.claim:
        print(f"- {sentence}")
    print(f"{folder.summary}, {report}")
    return 0


def summarise(
    options: EvalOptions,
    tasks: Mapping[str, Task],
    services: Services,
    journal: Journal,
    folder: RunFolder,
) -> EvalSummary:
    """Writes the metrics row and summary.json.

    Raises:
        ConfigError: if a trial is missing, stands twice or does not belong here.
    """
    rows = journal.rows()
    try:
        table = by_task(as_trials(rows), list(tasks), options.trials)
    except TrialError as error:
        raise ConfigError(f"{journal.path}: {error}") from None
    ledger = Ledger()
    attempts = journal.attempts()
    for attempt, row in enumerate(attempts):
        episode = as_episode(row, attempt)
        ledger.start(episode.rollout_id)
        ledger.settle(episode)
    ledger.check()
    mean, players = mean_score(table), {"user": services.user().name}
    baselines = {"doing nothing": noop_baseline(list(tasks.values()))}
    folder.metrics.unlink(missing_ok=True)
    folder.append_metrics(
        as_row(
            EvalRow(
                step=0,
                reward_mean=mean.mean,
                reward_stderr=mean.stderr,
                coverage=ledger.coverage,
                ledger=ledger.as_dict(),
                endings=dict(Counter(row.ending.label for row in attempts).most_common()),
                metrics=metric_means(row.metrics for row in attempts),
                baselines=baselines,
                services=players,
                eval_s=sum(row.wall_s for row in attempts),
                scores={task_id: list(scores) for task_id, scores in table.items()},
            )
        )
    )
    summary = EvalSummary(
        benchmark=f"tau-bench {options.env} {options.task_split}",
        policy=options.policy_name,
        pass_hat=tuple(pass_hat_k(table, k) for k in range(1, options.trials + 1)),
        trials=options.trials,
        baselines=baselines,
        coverage=sum(row.score is not None for row in rows) / len(rows),
        replayed=len(attempts) - len(rows),
        services=players,
        claim=CLAIM[options.view],
    )
    write_summary(folder, summary)
    return summary


async def _play(
    options: EvalOptions,
    services: Services,
    missing: Sequence[Rollout[Task]],
    journal: Journal,
    folder: RunFolder,
) -> None:
    player = make_player(options, services)
    shown = _shown(missing)

    def keep(episode: Episode) -> None:
        journal.append(episode)
        why = "sample" if episode.ending.by_policy else episode.ending.label
        if episode.rollout_id in shown or why not in ("sample", *shown):
            shown.add(why)
            folder.append_episode(
                trace_row(episode, player.tokenizer, step=0, kind="eval", why=why)
            )

    try:
        await run_rollouts(
            missing,
            player.play,
            ledger=Ledger(),
            concurrency=options.concurrency,
            on_episode=keep,
        )
    finally:
        await player.close()


def _shown(missing: Sequence[Rollout[Task]]) -> set[str]:
    """The rollouts that are kept whole for the report: some of the tasks, spread over all.

    They are chosen before they are played, so that an interrupted evaluation has its share; one of
    each ending that is not the policy's is added as it comes.
    """
    stride = max(1, len(missing) // EVAL_TRACES)
    return {rollout.rollout_id for rollout in missing[::stride]}


def make_player(options: EvalOptions, services: Services) -> Player:
    """The policy that the options name, ready to play.

    Raises:
        ConfigError: if it can't be loaded.
    """
    if options.base_url is not None:
        return _chat_player(options, services)
    assert options.hf_checkpoint is not None
    loaded = load_policy(options.hf_checkpoint, device=options.device)
    set_threads(options.threads or choose_threads(loaded.model).threads)
    context = options.max_context_len or loaded.model.config.max_position_embeddings
    engine = TorchEngine(loaded.model, rows=options.engine_rows, context=context)
    policy = Policy(
        engine=engine,
        profile=tokendelta.Profile.from_tokenizer(
            loaded.tokenizer, tools=services.view.tools(options.env)
        ),
        max_context_tokens=context,
        sampling=SamplingParams(
            temperature=options.temperature,
            top_p=options.top_p,
            max_new_tokens=options.max_response_len,
        ),
    )

    async def play(rollout: Rollout[Task]) -> Episode:
        return await run_episode(
            rollout.task,
            policy,
            services,
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
            seed=rollout.seed,
        )

    return Player(play, loaded.tokenizer, engine.close)


def _chat_player(options: EvalOptions, services: Services) -> Player:
    client = make_client(options)

    async def play(rollout: Rollout[Task]) -> Episode:
        return await run_chat_episode(
            rollout.task,
            client,
            services,
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
        )

    return Player(play, None, client.close)


def _tasks(options: EvalOptions) -> Sequence[Task]:
    if options.task_split == "held-out":
        return family_splits().held_out
    if options.task_split == "tune":
        return family_splits().tune
    return load_tasks(options.env, options.task_split)


def _missing(
    options: EvalOptions, tasks: Mapping[str, Task], journal: Journal
) -> list[Rollout[Task]]:
    done = {(row.task_id, row.trial) for row in journal.rows() if row.score is not None}
    return [
        Rollout(
            task=task,
            task_id=task_id,
            rollout_id=rollout_id(task_id, trial),
            group_id=task_id,
            seed=derive_seed(options.seed, "eval", task_id, trial),
        )
        for task_id, task in tasks.items()
        for trial in range(options.trials)
        if (task_id, trial) not in done
    ]


def _folder(options: EvalOptions) -> RunFolder:
    if not options.resume:
        return RunFolder.create(options.run_dir, "eval-tau", options.model_dump(mode="json"))
    assert options.run_dir is not None
    folder = RunFolder.open(options.run_dir)
    before, now = folder.read_config(), options.model_dump(mode="json")
    for name, value in now.items():
        if name not in NEVER_COMPARED and before.get(name) != value:
            raise ConfigError(
                f"--{name.replace('_', '-')} is {value!r}, the evaluation in {folder.path} was"
                f" started with {before.get(name)!r}: trials of two settings do not mix"
            )
    return folder
