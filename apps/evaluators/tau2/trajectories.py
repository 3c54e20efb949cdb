"""Saved episodes of τ²-bench: as trials keep them, and as the package's own files hold them.

A trial keeps one JSON object: `messages` in upstream's form, `termination`, `solo`. A Results file
of the package (`tau2 run`) holds tasks and simulations, whose tasks are found by what they say: the
name of their version is that of the tasks here that they equal, `file` if they equal none.

| termination of a file                              | is here           |
|----------------------------------------------------|-------------------|
| user_stop, agent_stop                              | finished          |
| max_steps, judge_stop                              | stopped(turns)    |
| too_many_errors, agent_error                       | stopped(format)   |
| context_window_exceeded                            | stopped(context)  |
| user_error                                         | lost(user)        |
| timeout, infrastructure_error, unexpected_error    | lost(environment) |

By the package user_error scores 0; here the policy is not blamed for its user.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from taubench.tau2 import (
    DOMAINS,
    Message,
    SourceError,
    Tau2Task,
    Termination,
    as_published,
    messages_from_json,
    task_by_id,
    task_from_json,
)
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, Ending, Limit
from turnwise.evaluation.folder import EvalFolder
from turnwise.evaluation.options import MAX_TRIALS
from turnwise.evaluation.saved import Saved, SavedRun, read_saved

ENV = "tau2-"
SOLO = "-solo"
FILE = "file"
ENDINGS: Mapping[Termination, Ending] = {
    Termination.USER_STOP: Ending.finished(),
    Termination.AGENT_STOP: Ending.finished(),
    Termination.MAX_STEPS: Ending.stopped(Limit.TURNS),
    Termination.JUDGE_STOP: Ending.stopped(Limit.TURNS),
    Termination.TOO_MANY_ERRORS: Ending.stopped(Limit.FORMAT),
    Termination.AGENT_ERROR: Ending.stopped(Limit.FORMAT),
    Termination.CONTEXT_WINDOW_EXCEEDED: Ending.stopped(Limit.CONTEXT),
    Termination.USER_ERROR: Ending.lost(BoundaryError(Boundary.USER, "user_error")),
    **{
        one: Ending.lost(BoundaryError(Boundary.ENVIRONMENT, one.value))
        for one in (
            Termination.TIMEOUT,
            Termination.INFRASTRUCTURE_ERROR,
            Termination.UNEXPECTED_ERROR,
        )
    },
}


def label_of(task: Tau2Task, *, solo: bool) -> dict[str, Any]:
    """What a row keeps of a task, so that `task_of` finds it again."""
    label = {
        "env": f"{ENV}{task.domain}{SOLO if solo else ''}",
        "task_set": task.task_set,
        "task_id": task.id,
        "content_hash": task.content_hash,
    }
    return {**label, "raw": task.raw} if task.task_set == FILE else label


def task_of(label: Any, where: str) -> tuple[Tau2Task, bool]:
    """The task of a label, and whether it is played solo.

    Raises:
        ConfigError: there is no such task, or it is another one by now.
    """
    if not isinstance(label, Mapping) or not str(label.get("env", "")).startswith(ENV):
        raise ConfigError(f"{where}: not a task of τ²-bench: {label!r:.80}")
    env = str(label["env"]).removeprefix(ENV)
    domain = env.removesuffix(SOLO)
    try:
        if "raw" in label:
            return task_from_json(domain, label["raw"]), env.endswith(SOLO)
        task = task_by_id(domain, str(label["task_id"]), str(label["task_set"]))
    except (KeyError, ValueError, SourceError) as error:
        raise ConfigError(f"{where}: no such task of τ²-bench here: {error}") from None
    if label.get("content_hash", task.content_hash) != task.content_hash:
        raise ConfigError(f"{where}: {task.key} is another task here than it was there")
    return task, env.endswith(SOLO)


def dumped(messages: Sequence[Mapping[str, Any]], termination: str, *, solo: bool) -> str:
    """The object that a trial keeps, as text."""
    kept = {"messages": list(messages), "termination": termination, "solo": solo}
    return json.dumps(kept, ensure_ascii=False)


def loaded(text: str) -> tuple[tuple[Message, ...], Termination, bool]:
    """Messages, termination and whether it was solo, of what a trial keeps.

    Raises:
        ValueError: it is none.
    """
    try:
        kept = json.loads(text)
        termination = Termination(kept["termination"])
        return messages_from_json(kept["messages"]), termination, bool(kept["solo"])
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"not a conversation of τ²-bench: {type(error).__name__}: {error}"
        ) from None


def read_runs(paths: Sequence[Path]) -> list[SavedRun]:
    """The runs of these folders and files, as one where each output has a trial's number.

    Trials of a task that stand in several files are counted on from file to file.

    Raises:
        ConfigError: naming file and place, what was found and what is expected.
    """
    runs = [run for path in paths for run in _read(path)]
    if any(one.trial is None for run in runs for one in run.outputs):
        return runs
    most: Counter[str] = Counter()
    outputs: list[Saved] = []
    for run in runs:
        moved = [replace(one, trial=(one.trial or 0) + most[one.question]) for one in run.outputs]
        for one in moved:
            most[one.question] = max(most[one.question], (one.trial or 0) + 1)
        outputs += moved
    name = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    return [SavedRun(name, outputs, tuple(fact for run in runs for fact in run.facts))]


def _read(path: Path) -> list[SavedRun]:
    if path.is_dir() or path.name == "trials.jsonl":
        about = EvalFolder.open(path if path.is_dir() else path.parent).about
        players = "".join(f", {role} {name}" for role, name in about.players.items())
        fact = f"{path.resolve().name}: {about.title}, {about.policy}{players}"
        return [replace(run, facts=(fact,)) for run in read_saved(path)]
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"--rescore {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a Results file of τ²-bench: {error}") from None
    if not isinstance(value, dict) or not {"info", "tasks", "simulations"} <= set(value):
        raise ConfigError(
            f"{path}: not a Results file of τ²-bench: expected an object with info, tasks and"
            " simulations"
        )
    return [_results(path, value)]


def _results(path: Path, value: Mapping[str, Any]) -> SavedRun:
    """The run of a Results file."""
    try:
        info = value["info"]
        domain, solo = info["environment_info"]["domain_name"], _is_solo(info)
        if domain not in DOMAINS:
            raise ConfigError(f"{path}: info: there is no domain {domain!r:.60} here")
        tasks = {
            task.id: as_published(task)
            for task in (task_from_json(domain, raw, FILE) for raw in value["tasks"])
        }
        numbers = _numbers(value["simulations"])
        outputs = [
            _simulation(path, place, one, tasks, number, solo)
            for place, (one, number) in enumerate(zip(value["simulations"], numbers, strict=True))
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path}: not a Results file of τ²-bench: {what}") from None
    return SavedRun(path.stem, outputs, (_who(path, info, tasks),))


def _is_solo(info: Mapping[str, Any]) -> bool:
    return str(info["agent_info"].get("implementation", "")).endswith("_solo")


def _who(path: Path, info: Mapping[str, Any], tasks: Mapping[str, Tau2Task]) -> str:
    """Who played, in a sentence: it stands beside the score."""
    agent, user = info["agent_info"], info["user_info"]
    sets = ", ".join(sorted({task.task_set for task in tasks.values()}))
    return (
        f"{path.name}: {info['environment_info']['domain_name']}, tasks {sets}, agent"
        f" {agent.get('llm')} ({agent.get('implementation')}), user {user.get('llm')}"
        f" ({user.get('implementation')}), {info.get('max_steps')} steps, seed {info.get('seed')}"
    )


def _numbers(simulations: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """The trial of each simulation: its own number, else counted by task."""
    counted: Counter[str] = Counter()
    for one in simulations:
        number = one.get("trial")
        task = str(one["task_id"])
        yield counted[task] if number is None else int(number)
        counted[task] += 1


def _simulation(
    path: Path,
    place: int,
    one: Mapping[str, Any],
    tasks: Mapping[str, Tau2Task],
    number: int,
    solo: bool,
) -> Saved:
    where = f"{path}: simulations[{place}]"
    name = str(one["task_id"])
    if name not in tasks:
        raise ConfigError(f"{where}: task_id {name!r:.60} is not among the file's tasks")
    if not 0 <= number < MAX_TRIALS:
        raise ConfigError(f"{where}: trial: expected a number from 0 to {MAX_TRIALS - 1}")
    try:
        termination = Termination(str(one["termination_reason"]))
    except ValueError:
        raise ConfigError(
            f"{where}: termination_reason: unknown {one['termination_reason']!r:.60}"
        ) from None
    task = tasks[name]
    reward = one.get("reward_info") or {}
    label = label_of(task, solo=solo)
    return Saved(
        question=key_of(label),
        label=label,
        output=dumped(one["messages"], termination.value, solo=solo),
        score=_score(reward.get("reward"), where),
        ending=ENDINGS[termination],
        where=where,
        trial=number,
    )


def key_of(label: Mapping[str, Any]) -> str:
    """A task's name, its version included: `tau2-retail/v1.0/12`."""
    return f"{label['env']}/{label['task_set']}/{label['task_id']}"


def _score(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{where}: reward: expected a number, found {value!r:.60}")
    return float(value)
