"""One evaluation: plays what is missing, then says what the trials say."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokendelta
from taubench import Task, load_tasks, noop_baseline
from taubench.desk import USER_MAY_CHANGE, Desk, open_desk, without_demonstrated
from taubench.splits import family_splits
from turnwise.arguments import parse_args
from turnwise.command import StopRun
from turnwise.config import ConfigError
from turnwise.engine import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.episode import Episode
from turnwise.evaluation.estimates import as_attempts, avg_at_k, paired_bootstrap, pass_at_k
from turnwise.evaluation.journal import Journal, TrialRow, account, as_trials, fields_of
from turnwise.evaluation.playing import missing_rollouts, play_trials
from turnwise.local.policy import load_policy
from turnwise.local.threads import choose_threads, set_threads
from turnwise.policy import Policy
from turnwise.report import write_eval_report
from turnwise.rollout import Rollout
from turnwise.run.folder import RunFolder
from turnwise.run.metrics import EvalRow, as_row, metric_means, parse_row
from turnwise.run.summary import EvalSummary, Measure, write_summary
from turnwise.trials import TrialError, by_task, mean_score, pass_hat_k

from apps.evaluators.tau.endpoint import check_endpoint, make_client
from apps.evaluators.tau.options import EvalOptions

PROG = "tau:eval"
DESCRIPTION = (
    "Evaluates a policy on tau-bench: pass^1..k with errors clustered by task, coverage, and what"
    " doing nothing scores. Exit codes: 0 ok, 2 usage or configuration, 3 the endpoint does not"
    " answer, 4 run failed, 130 interrupted."
)
CLAIM = {
    "full": "Upstream's task: the policy document and all tools of the domain.",
    "compact": "The compact prompt: five tools, shortened orders, no policy document. The score is"
    " not comparable with published tau-bench scores.",
}
OFFLINE_CLAIM = {
    "full": "The customer is simulated offline: it says what its instruction says and plays no"
    " conditional scenes. Scores with it compare checkpoints; published scores have another"
    " customer.",
    "compact": "The customer is simulated offline: it says everything at once, and leaves after the"
    " agent's first statement.",
}
ALL_PASS = "pass^k: the chance that k trials of a task all pass."
ONE_PASSES = "pass@k: the chance that one of k trials passes."
MAY_CHANGE = frozenset(
    {
        "config", "resume", "run_dir", "concurrency", "engine_rows", "threads", "dry_run",
        "api_key_env", "compare_with", *USER_MAY_CHANGE,
    }
)  # fmt: skip
"""Options that may differ when an evaluation is resumed."""

Scores = Mapping[str, Sequence[float | None]]
"""Each task's scores by trial, None where one was lost."""
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
    desk = open_desk(
        options.view,
        options.agent_strategy,
        options.user,
        domain=options.env,
        max_turns=options.max_turns,
    )
    chosen, left_out = without_demonstrated(_tasks(options), options.agent_strategy, options.env)
    tasks = {task.id: task for task in chosen}
    if options.base_url is not None:
        asyncio.run(check_endpoint(options, desk.services))
    other = None if options.compare_with is None else read_scores(options.compare_with)
    folder = _folder(options)
    journal = Journal(folder.path / "trials.jsonl", TrialRow)
    missing = missing_rollouts(tasks, options.trials, seed=options.seed, scored=journal.scored())
    print(
        f"Evaluating {options.policy_name} on {len(tasks)} {options.env} {options.task_split} tasks"
        f" x {options.trials} trials; {len(missing)} to play. Prompt {options.view}, user"
        f" {desk.user}. Folder {folder.path}"
    )
    go_on = f"go on with --resume --run-dir {folder.path} and the same options"
    try:
        if missing:
            asyncio.run(_play(options, desk, missing, journal, folder))
    except KeyboardInterrupt:
        print(f"interrupted; {go_on}")
        return 130
    except StopRun as stop:
        write_eval_report(folder.path)
        done, asked = len(journal.scored()), len(tasks) * options.trials
        raise StopRun(f"{stop}; {done} of {asked} trials have their score, {go_on}") from None
    summary = summarise(options, tasks, desk, journal, folder, other, left_out)
    report = write_eval_report(folder.path)
    print(summary.verdict())
    for measure in summary.measures:
        print(f"{measure.name}  {measure.estimate}  ({measure.estimate.tasks} tasks could tell)")
    if summary.compared:
        print(summary.compared)
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
    desk: Desk,
    journal: Journal[TrialRow],
    folder: RunFolder,
    other: tuple[Path, Scores] | None = None,
    left_out: int = 0,
) -> EvalSummary:
    """Writes the metrics row and summary.json.

    Args:
        other: The run to compare with (`read_scores`).
        left_out: Tasks of the split that the prompt demonstrates.

    Raises:
        ConfigError: if a trial is missing, stands twice or does not belong here, or the other run
            is of other tasks.
    """
    rows = journal.rows()
    try:
        table = by_task(as_trials(rows), list(tasks), options.trials)
    except TrialError as error:
        raise ConfigError(f"{journal.path}: {error}") from None
    attempts = journal.attempts()
    ledger = account(attempts)
    mean, players = mean_score(table), {"user": desk.user}
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
                service_totals=dict(desk.totals()),
                eval_s=sum(row.wall_s for row in attempts),
                scores={task_id: list(scores) for task_id, scores in table.items()},
            )
        )
    )
    summary = EvalSummary(
        benchmark=f"tau-bench {options.env} {options.task_split}",
        policy=options.policy_name,
        measures=measures(table, options.trials),
        lost_as_failed=avg_at_k(as_attempts(table)).low,
        compared="" if other is None else compare(other, table),
        trials=options.trials,
        baselines=baselines,
        coverage=sum(row.score is not None for row in rows) / len(rows),
        replayed=len(attempts) - len(rows),
        services=players,
        claim=_claim(options, desk.user, left_out),
    )
    write_summary(folder, summary)
    return summary


def measures(table: Scores, trials: int) -> tuple[Measure, ...]:
    """pass^1 to pass^trials, then pass@2 to pass@trials, of tasks with enough scored trials."""
    attempts = as_attempts(table)
    ks = range(1, trials + 1)
    return (
        *(Measure(name=f"pass^{k}", estimate=pass_hat_k(table, k), meaning=ALL_PASS) for k in ks),
        *(
            Measure(name=f"pass@{k}", estimate=pass_at_k(attempts, k).estimate, meaning=ONE_PASSES)
            for k in ks[1:]
        ),
    )


def read_scores(path: Path) -> tuple[Path, Scores]:
    """The scores of the last evaluation of a run, and where they are from.

    Raises:
        ConfigError: if the folder has none.
    """
    rows = [row for row in RunFolder.open(path).metric_rows() if row.get("kind") == "eval"]
    if not rows:
        raise ConfigError(f"--compare-with {path}: no evaluation in it has ended")
    row = parse_row(rows[-1])
    assert isinstance(row, EvalRow)
    return path, row.scores


def compare(other: tuple[Path, Scores], table: Scores) -> str:
    """This run against the other one, in words. Raises ConfigError if the tasks differ."""
    path, scores = other
    try:
        difference = paired_bootstrap(as_attempts(scores), as_attempts(table))
    except TrialError as error:
        raise ConfigError(f"--compare-with {path}: {error}") from None
    return f"Against {path.name}: {difference}."


def _claim(options: EvalOptions, user: str, left_out: int) -> tuple[str, ...]:
    """What the score means and what it does not."""
    offline = options.user.strategy == "offline"
    played = f"The customer is {user}; compare the score with those of this customer alone."
    shown = f"{left_out} tasks stand in the prompt as demonstrations and are left out."
    return (
        CLAIM[options.view],
        OFFLINE_CLAIM[options.view] if offline else played,
        *((shown,) if left_out else ()),
    )


async def _play(
    options: EvalOptions,
    desk: Desk,
    missing: Sequence[Rollout[Task]],
    journal: Journal[TrialRow],
    folder: RunFolder,
) -> None:
    player = make_player(options, desk)
    try:
        await play_trials(
            missing,
            player.play,
            keep=lambda episode: journal.append(TrialRow(**fields_of(episode))),
            folder=folder,
            tokenizer=player.tokenizer,
            concurrency=options.concurrency,
        )
    finally:
        await player.close()
        await desk.close()


def make_player(options: EvalOptions, desk: Desk) -> Player:
    """The policy that the options name, ready to play.

    Raises:
        ConfigError: if it can't be loaded.
    """
    if options.base_url is not None:
        return _chat_player(options, desk)
    assert options.hf_checkpoint is not None
    view = desk.services.view
    loaded = load_policy(
        options.hf_checkpoint,
        device=options.device,
        require_tools=bool(view.tools(options.env)),
    )
    set_threads(options.threads or choose_threads(loaded.model).threads)
    context = options.max_context_len or loaded.model.config.max_position_embeddings
    engine = TorchEngine(loaded.model, rows=options.engine_rows, context=context)
    policy = Policy(
        engine=engine,
        profile=tokendelta.Profile.from_tokenizer(loaded.tokenizer, tools=view.tools(options.env)),
        max_context_tokens=context,
        sampling=SamplingParams(
            temperature=options.temperature,
            top_p=options.top_p,
            max_new_tokens=options.max_response_len,
        ),
    )

    async def play(rollout: Rollout[Task]) -> Episode:
        return await desk.play(rollout, policy)

    return Player(play, loaded.tokenizer, engine.close)


def _chat_player(options: EvalOptions, desk: Desk) -> Player:
    client = make_client(options)

    async def play(rollout: Rollout[Task]) -> Episode:
        return await desk.play_chat(rollout, client)

    return Player(play, None, client.close)


def _tasks(options: EvalOptions) -> Sequence[Task]:
    if options.task_split == "held-out":
        return family_splits().held_out
    if options.task_split == "tune":
        return family_splits().tune
    return load_tasks(options.env, options.task_split)


def _folder(options: EvalOptions) -> RunFolder:
    config = options.model_dump(mode="json")
    if not options.resume:
        return RunFolder.create(options.run_dir, "eval-tau", config)
    assert options.run_dir is not None
    folder = RunFolder.open(options.run_dir)
    folder.refuse_changes(
        config, may_change=MAY_CHANGE, because="trials of two settings do not mix"
    )
    return folder
