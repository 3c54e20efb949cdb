"""Writes the tasks of tau-bench or τ²-bench as the data files of a run.

    ./pants run apps/trainers/tau:prepare -- --local-dir DIR
    ./pants run apps/trainers/tau:prepare -- --local-dir DIR --env tau2-telecom-solo

With `--family` it writes what the run of presets/shipped-policy.toml needs instead: the tasks of
the main job as family_{train,held_out}.jsonl, and the shipped policy as policy/.

Each of retail_{train,dev,test}_tasks.jsonl and airline_test_tasks.jsonl holds one
`{"index": ..., "metadata": ...}` a line: the task's number within its split, and the task as
upstream's own generator writes it (user_id, actions, instruction, outputs), its `env` and
`task_split`, and under `flags` why its score may say less than it seems.

With `--env` it writes τ²-bench's instead, ENV_SPLIT.jsonl for `train` and `test`, of telecom also
`rest` (the 2,171 tasks that are in no published score), each `{"index": ..., "metadata": ...}`
with `env`, `task_split`, `task_set`, `task_id` and `content_hash`, by which another version of the
task is refused. Tasks whose own solution does not pass are left out of what is trained on.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from taubench import SPLITS, SourceError, Task, load_tasks
from taubench.fewshot import demonstrated
from taubench.splits import family_splits
from turnwise.arguments import parse_args
from turnwise.command import run_command
from turnwise.config import CommandConfig, ConfigError

from apps.trainers.tau.options import Env, is_tau2

FlagName = Literal[
    "gt-write-fails", "order-dependent", "noop-reward", "short-outputs", "demonstrated"
]


POLICY = Path(__file__).parent / "policy"


class PrepareConfig(CommandConfig):
    """Writes the tasks of tau-bench or τ²-bench as the data files of a run."""

    local_dir: Path = Path("tau-bench")
    """Folder to write to; made if it does not exist."""
    exclude: tuple[FlagName, ...] = Field(default=())
    """Leave tasks with any of these flags out of the training file. The others keep their index.
    `demonstrated` are those that the strategy few-shot shows in its prompt. The dev and test files
    are always whole, so that scores can be compared."""
    family: bool = False
    """Write the tasks of the main job and the policy that is trained on them."""
    env: tuple[Env, ...] = ()
    """Write the tasks of these of τ²-bench, such as tau2-telecom-solo."""
    task_set: Literal["v1.0", "26.3"] | None = None
    """Version of τ²-bench's tasks; where not given the newest of each domain."""


def row(task: Task) -> dict[str, Any]:
    """The data row of a task; `index` is what slime gives to the hooks as the prompt."""
    return {
        "index": task.index,
        "metadata": {
            "user_id": task.user_id,
            "actions": [{"name": one.name, "kwargs": dict(one.kwargs)} for one in task.actions],
            "instruction": task.instruction,
            "outputs": list(task.outputs),
            "env": task.domain,
            "task_split": task.split,
            "flags": asdict(task.flags),
        },
    }


def kept(tasks: Sequence[Task], exclude: Sequence[FlagName]) -> Iterator[Task]:
    """The tasks without those that have a flag of `exclude`."""
    names = [name.replace("-", "_") for name in exclude if name != "demonstrated"]
    shown = {
        task.id for task in tasks if "demonstrated" in exclude for task in demonstrated(task.domain)
    }
    return (
        task
        for task in tasks
        if task.id not in shown and not any(getattr(task.flags, name) for name in names)
    )


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Writes a data file of tau-bench's tasks."""
    write_rows(path, [row(task) for task in tasks])


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a data file whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as stream:
        for one in rows:
            stream.write(json.dumps(one) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def write_family(folder: Path) -> None:
    """Writes the tasks of the main job and the shipped policy."""
    parts = family_splits()
    for name, tasks in (("train", parts.train), ("held_out", parts.held_out)):
        path = folder / f"family_{name}.jsonl"
        write_tasks(path, tasks)
        print(f"{path}: {len(tasks)} tasks")
    policy = folder / "policy"
    shutil.copytree(POLICY, policy, dirs_exist_ok=True)
    print(f"{policy}: the shipped policy")


def write_tau2(folder: Path, env: str, given: str | None) -> None:
    """Writes the tasks of an `env` of τ²-bench."""
    # Reads packages that a run on tau-bench need not have.
    from apps.trainers.tau.tau2.jobs import REST, files_of

    for split, rows in files_of(env, given):
        path = folder / f"{env}_{split}.jsonl"
        chosen = [{"index": int(str(row.prompt)), "metadata": row.metadata} for row, _ in rows]
        if split in ("train", REST):
            passing = zip(chosen, rows, strict=True)
            chosen = [one for one, (_, gold_passes) in passing if gold_passes]
        write_rows(path, chosen)
        left_out = len(rows) - len(chosen)
        print(f"{path}: {len(chosen)} tasks" + (f", {left_out} left out" * bool(left_out)))


def prepare(argv: Sequence[str]) -> None:
    """The command.

    Raises:
        ConfigError: a bad option, or the folder can't be written to.
    """
    config = parse_args(
        PrepareConfig, argv, prog="prepare", description=PrepareConfig.__doc__ or ""
    )
    if config.family and config.exclude:
        raise ConfigError("--exclude: the family has no tasks to leave out; give one of the two")
    others = [env for env in config.env if not is_tau2(env)]
    if others:
        raise ConfigError(f"--env {others[0]}: tau-bench's are written where it is not given")
    if config.env and (config.family or config.exclude):
        raise ConfigError("--env: τ²-bench's tasks have no family and no flags to exclude")
    try:
        config.local_dir.mkdir(parents=True, exist_ok=True)
        if config.family:
            write_family(config.local_dir)
            return
        for env in config.env:
            write_tau2(config.local_dir, env, config.task_set)
        if config.env:
            return
        for domain, splits in SPLITS.items():
            for split in splits:
                tasks = load_tasks(domain, split)
                chosen = list(kept(tasks, config.exclude if split == "train" else ()))
                path = config.local_dir / f"{domain}_{split}_tasks.jsonl"
                write_tasks(path, chosen)
                left_out = len(tasks) - len(chosen)
                print(f"{path}: {len(chosen)} tasks" + (f", {left_out} left out" * bool(left_out)))
    except OSError as error:
        raise ConfigError(f"--local-dir {config.local_dir}: {error.strerror or error}") from None
    except SourceError as error:
        raise ConfigError(str(error)) from None


if __name__ == "__main__":
    sys.exit(run_command(prepare, sys.argv[1:]))
