"""Many episodes at once through slime's hooks, against an engine and a customer of fixed latency.

    python -m benchmarks.rollout.measure --episodes 256
    python -m benchmarks.rollout.measure --episodes 16 --blocking

Each episode is the `full` retail prompt, four sampled turns and five messages of the customer,
with the tokenizer of the shipped policy. Servers run in a process of their own, so that the CPU
time is that of the hooks' process. `--blocking` is the pattern of an environment whose step asks
the customer inside of the coroutine: everything else is the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "libs/turnwise/tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "libs/turnwise/tests/slime_standin"))

from pydantic import Field
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    generate_and_rm_group,
)
from slime.utils.misc import SingletonMeta  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import make_args, to_train_data
from turnwise.arguments import parse_args
from turnwise.command import run_command
from turnwise.config import CommandConfig
from turnwise.slime import accounts
from turnwise.slime import close as close_connections

from benchmarks.rollout.method import TURNS, USERS

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "apps/trainers/tau/policy"
GROUP = 8


class MeasureConfig(CommandConfig):
    """Measures a rollout against servers of fixed latency."""

    episodes: int = Field(default=256, ge=GROUP, multiple_of=GROUP)
    """Episodes under way at once."""
    policy_s: float = Field(default=0.3, ge=0)
    """Seconds for each sampled turn."""
    user_s: float = Field(default=0.5, ge=0)
    """Seconds for each message of the customer."""
    blocking: bool = False
    """Ask the customer inside of the coroutine without giving way."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen of one rollout.

    Attributes:
        wall_s: From the first episode's start to the last one's end.
        longest_s: Of the longest episode.
        latency_s: The sum of an episode's latencies: no rollout is faster.
        cpu_ms: CPU time of the process per episode, in milliseconds.
        lag_p50_s, lag_max_s: How late the event loop ran.
        rss_mb: Largest resident memory of the process.
        coverage: Share of the episodes with a score.
        prompt_tokens: Mean over the sampled turns.
    """

    episodes: int
    blocking: bool
    wall_s: float
    longest_s: float
    latency_s: float
    cpu_ms: float
    lag_p50_s: float
    lag_max_s: float
    rss_mb: float
    coverage: float
    prompt_tokens: float


async def roll_out(config: MeasureConfig, ports: Mapping[str, int]) -> Measured:
    """One warm-up episode, and then all at once."""
    args = make_args(
        hf_checkpoint=str(TOKENIZER),
        turnwise={
            "method": "benchmarks.rollout.method:MeasuredTau",
            "max_turns": TURNS,
            "user_deadline_s": 3600,
            "url": f"http://127.0.0.1:{ports['user']}",
            "blocking": config.blocking,
        },
        sglang_router_port=ports["engine"],
        n_samples_per_prompt=GROUP,
        rollout_max_context_len=8192,
    )
    params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 1024}
    await generate_and_rm_group(args, _group(config.episodes // GROUP, GROUP), params)
    accounts.TRAIN.take()
    groups = [_group(number, GROUP) for number in range(config.episodes // GROUP)]
    cpu, started = time.process_time(), time.perf_counter()
    done = await asyncio.gather(
        *(generate_and_rm_group(args, group, dict(params)) for group in groups)
    )
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    period = accounts.TRAIN.take()
    period.check()
    to_train_data(args, done)
    await close_connections()
    await USERS.close()
    samples = [sample for group in done for sample in group]
    prompts = sum(sample.prefix_cache_info.total_prompt_tokens for sample in samples)
    return Measured(
        episodes=config.episodes,
        blocking=config.blocking,
        wall_s=wall_s,
        longest_s=max(one.wall_s for one in period.ended),
        latency_s=TURNS * config.policy_s + (TURNS + 1) * config.user_s,
        cpu_ms=1000 * cpu_s / config.episodes,
        lag_p50_s=period.lag_p50_s,
        lag_max_s=period.lag_max_s,
        rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        coverage=period.ledger.coverage,
        prompt_tokens=prompts / len(samples) / TURNS,
    )


def _group(number: int, size: int) -> list[Any]:
    metadata = {"env": "retail", "task_split": "train"}
    return [
        Sample(prompt=number, index=number * size + at, group_index=number, metadata=dict(metadata))
        for at in range(size)
    ]


def measure(config: MeasureConfig) -> Measured:
    """Starts the servers, measures, and ends them."""
    words = [str(config.policy_s), str(config.user_s), str(TOKENIZER)]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.rollout.servers", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        cwd=ROOT,
    ) as servers:
        assert servers.stdin is not None and servers.stdout is not None
        ports = json.loads(servers.stdout.readline())
        try:
            return asyncio.run(roll_out(config, ports))
        finally:
            SingletonMeta._instances.clear()
            servers.stdin.close()


def main(argv: Sequence[str]) -> None:
    """The command."""
    config = parse_args(
        MeasureConfig, argv, prog="measure", description=MeasureConfig.__doc__ or ""
    )
    for name, value in asdict(measure(config)).items():
        print(f"{name:14} {value:.3f}" if isinstance(value, float) else f"{name:14} {value}")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
