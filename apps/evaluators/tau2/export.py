"""Writes the trials of an evaluation as a Results file, which the package's own command reads.

    ./pants run apps/evaluators/tau2:export -- --run-dir DIR --out RESULTS.json

Tasks are as upstream writes them, conversations in upstream's form, rewards those of the run. Lost
trials are left out, and said.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taubench.tau2 import policy
from turnwise.arguments import parse_args
from turnwise.command import run_command
from turnwise.config import CommandConfig, ConfigError
from turnwise.evaluation.folder import EvalFolder
from turnwise.evaluation.journal import TrialRow
from turnwise.run.folder import write_whole

from apps.evaluators.tau2.trajectories import SOLO, task_of

UNKNOWN_TIME = "1970-01-01T00:00:00"
"""A trial keeps how long it took, not when it was."""


class ExportConfig(CommandConfig):
    """Writes the trials of an evaluation as a Results file of tau2-bench."""

    run_dir: Path
    """Folder of the evaluation."""
    out: Path
    """File to write."""


def results(folder: EvalFolder) -> tuple[dict[str, Any], int]:
    """The Results object of an evaluation, and how many trials it leaves out.

    Raises:
        ConfigError: the folder is of another benchmark, or of several domains.
    """
    where = str(folder.run.path)
    config, rows = folder.run.read_config(), folder.journal.rows()
    tasks = {row.id: task_of(row.label, where) for row in folder.tasks}
    domains = sorted({task.domain for task, _ in tasks.values()})
    if len(domains) != 1:
        raise ConfigError(f"{where}: a Results file is of one domain, found {', '.join(domains)}")
    kept = [row for row in rows if row.score is not None and row.output is not None]
    solo = any(solo for _, solo in tasks.values())
    found = {
        "timestamp": UNKNOWN_TIME,
        "info": _info(folder, config, domains[0], solo),
        "tasks": [task.raw for task, _ in tasks.values()],
        "simulations": [_simulation(row, tasks[row.task_id][0].id) for row in kept],
    }
    return found, len(rows) - len(kept)


def _info(folder: EvalFolder, config: Mapping[str, Any], domain: str, solo: bool) -> dict[str, Any]:
    about, tau = folder.about, config.get("tau", {})
    return {
        "git_commit": "turnwise",
        "num_trials": about.k,
        "max_steps": tau.get("max_steps", 0),
        "max_errors": tau.get("max_errors", 0),
        "user_info": {
            "implementation": "turnwise",
            "llm": about.players.get("user"),
            "llm_args": None,
            "global_simulation_guidelines": None,
        },
        "agent_info": {
            "implementation": f"turnwise{SOLO.replace('-', '_') if solo else ''}",
            "llm": about.policy,
            "llm_args": {name: config.get(name) for name in ("temperature", "top_p")},
        },
        "environment_info": {"domain_name": domain, "policy": policy(domain, solo=solo)},
        "seed": config.get("seed"),
    }


def _simulation(row: TrialRow, task_id: str) -> dict[str, Any]:
    conversation = json.loads(row.output or "{}")
    parts = {
        name.removeprefix("part/"): value
        for name, value in row.metrics.items()
        if name.startswith("part/")
    }
    return {
        "id": f"{row.task_id}#{row.trial}",
        "task_id": task_id,
        "timestamp": UNKNOWN_TIME,
        "start_time": UNKNOWN_TIME,
        "end_time": UNKNOWN_TIME,
        "duration": row.wall_s,
        "termination_reason": conversation["termination"],
        "reward_info": {
            "reward": row.score,
            "reward_basis": list(parts) or None,
            "reward_breakdown": parts or None,
        },
        "user_cost": row.metrics.get("user_usd"),
        "messages": conversation["messages"],
        "trial": row.trial,
    }


def export(argv: Sequence[str]) -> None:
    """The command.

    Raises:
        ConfigError: a bad option, a folder that is none, or a file that can't be written.
    """
    config = parse_args(
        ExportConfig, argv, prog="tau2:export", description=ExportConfig.__doc__ or ""
    )
    found, left_out = results(EvalFolder.open(config.run_dir))
    try:
        config.out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(config.out, json.dumps(found, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"--out {config.out}: {error.strerror or error}") from None
    lost = f"; {left_out} trials were lost or not kept, and are left out" if left_out else ""
    print(f"{config.out}: {len(found['simulations'])} conversations{lost}")


if __name__ == "__main__":
    sys.exit(run_command(export, sys.argv[1:]))
