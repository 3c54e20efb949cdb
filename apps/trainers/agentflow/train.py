"""Trains the planner of AgentFlow with GRPO.

./pants run apps/trainers/agentflow:train                   on this machine, the shipped planner
./pants run apps/trainers/agentflow:train -- --help         every option
./pants run apps/trainers/agentflow:train -- --backend slime --config FILE     on a GPU cluster
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from turnwise.arguments import named_option
from turnwise.command import run_command
from turnwise.local.threads import wait_passively


def train(argv: Sequence[str]) -> int:
    """Runs the backend that `argv` names; returns the exit code."""
    if named_option(argv, "--backend") == "slime":
        from turnwise.launch.command import train_on_cluster

        return train_on_cluster("agentflow", argv)
    # Set before torch is imported, which is why the backend is imported here.
    wait_passively()
    from apps.trainers.agentflow.local import TRAINER

    return TRAINER.run(argv)


def main() -> None:
    sys.exit(run_command(train, sys.argv[1:]))


if __name__ == "__main__":
    main()
