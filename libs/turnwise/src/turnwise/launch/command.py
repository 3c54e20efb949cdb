"""A method's trainer on a GPU cluster: slime's `train.py` as a Ray job, from one file."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from turnwise.launch.start import run


def train_on_cluster(method: str, argv: Sequence[str]) -> int:
    """The command `train` of a method with `--backend slime`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"{method}:train --backend slime",
        description=(
            "Trains on a GPU cluster through slime. Every flag of slime may follow and goes before"
            f" the file, as do --{method}.KEY, --ray.KEY and --model.KEY."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--backend", choices=["slime"], help="this backend")
    parser.add_argument("--config", type=Path, required=True, help="what the run is, TOML")
    parser.add_argument("--run-dir", type=Path, help=f"run folder; runs/{method}-TIME if not given")
    parser.add_argument("--detach", action="store_true", help="return when the job is submitted")
    parser.add_argument(
        "--takeover", action="store_true", help="end a run of ours that still lives beside it"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan, start nothing")
    parser.add_argument(
        "--debug",
        choices=["rollout", "replay"],
        help="rollouts without training, or training on saved rollouts",
    )
    known, overrides = parser.parse_known_args(list(argv))
    return run(
        known.config,
        overrides,
        run_dir=known.run_dir or Path("runs") / f"{method}-{time.strftime('%Y%m%d-%H%M%S')}",
        detach=known.detach,
        takeover=known.takeover,
        dry_run=known.dry_run,
        debug=known.debug,
        method=method,
    )
