"""tau-bench as a benchmark: upstream's splits, and the parts that are kept from the main job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from taubench import SPLITS, Task, noop_baseline
from turnwise.config import ConfigError
from turnwise.evaluation.benchmark import AnyMethod, Benchmark
from turnwise.evaluation.options import MAX_TRIALS, SharedOptions
from turnwise.policy import AnyPolicy

FAMILY = ("held-out", "tune")
"""Parts of the compact prompt's family of retail tasks that are kept from training."""


class TauEvalOptions(SharedOptions):
    """Options of the tau evaluator; who plays the user, the domain and the prompt are tau's own."""

    task_split: Literal["train", "dev", "test", "held-out", "tune"] = "test"
    """Upstream's splits, or the parts of retail that are kept from the main job."""
    trials: int = Field(default=4, ge=1, le=MAX_TRIALS)
    """Trials of each task; pass^1 to pass^trials are reported."""

    @property
    def k(self) -> int:
        """See `SharedOptions`."""
        return self.trials

    @property
    def split(self) -> str:
        """See `SharedOptions`."""
        return self.task_split


class TauBench(Benchmark):
    """pass^k beside what doing nothing scores; the reward is tau's own."""

    Options = TauEvalOptions
    name = "tau"
    description = (
        "Evaluates a policy on tau-bench: pass^1..k with errors clustered by task, coverage, and"
        " what doing nothing scores."
    )
    method = "tau"
    measured = ("pass^k", "pass@k")

    def method_defaults(self, options: TauEvalOptions) -> Mapping[str, Any]:
        """The offline user; the compact prompt for the parts of its family."""
        prompt = {"prompt": "compact"} if options.task_split in FAMILY else {}
        return {"user": {"strategy": "offline"}, **prompt}

    def check(self, options: TauEvalOptions, method: AnyMethod) -> None:
        """See `Benchmark`."""
        tau, split = method.options, options.task_split
        if tau.env not in SPLITS:
            raise ConfigError(
                f"--env {tau.env}: τ²-bench is evaluated by apps/evaluators/tau2:eval"
            )
        if split in FAMILY and tau.env != "retail":
            raise ConfigError(f"--task-split {split}: is of retail, found --env {tau.env}")
        if split not in FAMILY and split not in SPLITS[tau.env]:
            known = ", ".join(SPLITS[tau.env])
            raise ConfigError(f"--task-split: {tau.env} has no split {split}; there are {known}")
        if tau.user.strategy == "human" and options.concurrency != 1:
            raise ConfigError("--user.strategy human needs --concurrency 1: one person, one talk")

    def rows(self, options: TauEvalOptions, method: AnyMethod) -> Any:
        """See `Benchmark`."""
        return method.rows(options.task_split)

    def title(self, options: TauEvalOptions, method: AnyMethod) -> str:
        """See `Benchmark`."""
        return f"tau-bench {method.options.env} {options.task_split}"

    async def baselines(
        self, method: AnyMethod, tasks: Mapping[str, Task], policy: AnyPolicy
    ) -> Mapping[str, float]:
        """See `Benchmark`."""
        return {"doing nothing": noop_baseline(list(tasks.values()))}
