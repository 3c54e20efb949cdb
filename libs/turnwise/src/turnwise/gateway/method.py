"""A method whose agent is a program of its own, which speaks to the policy through the gateway.

    class Mine(Harness[HarnessOptions, Task]):
        def task(self, row): ...
        async def agent(self, base_url, task): ...        # or a command:
        def command(self, task): return ["my-agent", "--task", task.text]
        def describe(self, task): return {"text": task.text}      # or a service, --callback-url
        def reward(self, task, result): ...

| what happens                                                   | ending         | score         |
|----------------------------------------------------------------|----------------|---------------|
| the agent returns, or its command ends with status 0           | finished       | reward        |
| the same, and the policy had run into a bound last             | stopped(limit) | reward        |
| the agent fails after the policy ran into a bound              | stopped(limit) | `limit_score` |
| it fails otherwise, asks for no turn, or misses its deadline   | lost(harness)  | none          |
| the engine fails, whatever the agent makes of it               | lost(engine)   | none          |
| the reward function fails or misses its deadline               | lost(judge)    | none          |
| the engine gives a turn back unfinished                        | cancelled      | none          |
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field

from turnwise.config import ConfigError
from turnwise.episode import (
    Boundary,
    BoundaryError,
    Ending,
    Episode,
    Limit,
    as_score,
    crossing,
)
from turnwise.gateway.callback import Callback, check_callback
from turnwise.gateway.command import CommandLimits, client_environment, run_command
from turnwise.gateway.record import Record
from turnwise.gateway.server import Gateway
from turnwise.gateway.turns import Bounds
from turnwise.method import Method, MethodOptions, Services
from turnwise.policy import AnyPolicy, Policy
from turnwise.rollout import Rollout


class HarnessOptions(MethodOptions):
    """What every harness takes."""

    gateway_host: str = "127.0.0.1"
    """Address to listen on. Another one than this machine's own is reachable for others; the secret
    in each rollout's URL is what keeps them out."""
    gateway_public_host: str | None = None
    """Name or address by which agents reach the gateway. Where not given gateway-host, and for
    0.0.0.0 the address that the machine of the rollout has in its network."""
    callback_url: str | None = None
    """A service that runs the agent in place of this process: it is POSTed the base URL and the
    task, and answers with the result."""
    max_turns: int = Field(default=64, ge=1)
    """Turns of a rollout; a request for another one is refused."""
    max_requests_at_once: int = Field(default=8, ge=1)
    """Requests of a rollout that may be under way; a further one is asked to come again."""
    turn_deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for each turn."""
    harness_deadline_s: float = Field(default=1800.0, gt=0)
    """Seconds for the agent; one that takes longer is lost."""
    reward_deadline_s: float = Field(default=60.0, gt=0)
    """Seconds for the reward function."""
    command_memory_mb: int | None = Field(default=None, ge=1)
    """MiB of data that each process of a command may take. Where not given nothing bounds it."""
    command_cpu_s: int | None = Field(default=None, ge=1)
    """Seconds of processor time for each process of a command; one that takes more is ended. Where
    not given nothing bounds it."""
    constrained: Literal["mask", "train"] = "mask"
    """Turns that a client asked a JSON schema for: masked, since their log-probs are of the
    grammar's distribution, which no trainer computes again, or trained all the same."""
    limit_score: float = 0.0
    """The score where the agent fails because the policy ran into a bound."""


HarnessOptionsT = TypeVar("HarnessOptionsT", bound=HarnessOptions)
TaskT = TypeVar("TaskT")


class Harness(Method[HarnessOptionsT, TaskT]):
    """See the module. An agent overrides `agent`, `command` or `describe`, and `reward`."""

    Options: ClassVar[type[MethodOptions]] = HarnessOptions
    fans_out = True

    def __init__(self, options: HarnessOptionsT) -> None:
        """
        Raises:
            ConfigError: the options are wrong.
        """
        super().__init__(options)
        if options.callback_url is not None:
            check_callback(options.callback_url, options.gateway_host, options.gateway_public_host)
        self._gateway: Gateway | None = None
        self._callback: Callback | None = None

    async def agent(self, base_url: str, task: TaskT) -> Any:
        """Runs the agent, and returns what its reward is computed from. Runs `command` if it is not
        overridden.

        Args:
            base_url: In place of a provider's; for OpenAI's clients with `/v1` behind it.
            task: What it is to do.
        """
        with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
            workspace = Path(folder)
            await asyncio.to_thread(self.prepare, task, workspace)
            environment = client_environment(base_url, workspace)
            limits = CommandLimits(
                memory_mb=self.options.command_memory_mb, cpu_s=self.options.command_cpu_s
            )
            result = await run_command(self.command(task), workspace, environment, limits)
            return await self._grade(task, result)

    def command(self, task: TaskT) -> Sequence[str]:
        """The command that is the agent. It finds the policy by its environment, in
        `OPENAI_BASE_URL` and `ANTHROPIC_BASE_URL`, and runs in a workspace of its own."""
        raise NotImplementedError(f"{type(self).__name__} has neither agent nor command")

    def prepare(self, task: TaskT, workspace: Path) -> None:
        """Fills the workspace of a command."""
        return None

    def describe(self, task: TaskT) -> Any:
        """The task as the service behind `callback_url` gets it: anything that is JSON."""
        raise NotImplementedError(f"{type(self).__name__} does not describe its tasks")

    @abstractmethod
    def reward(self, task: TaskT, result: Any) -> float:
        """The score of what `agent` or the service returned, or of a `CommandResult`. Runs in a
        thread, which a deadline does not end: one that hangs stays until the process ends."""

    async def open(self, services: Services) -> None:
        """See `Method`. Starts the gateway."""
        options = self.options
        self._gateway = Gateway(host=options.gateway_host, public_host=options.gateway_public_host)
        try:
            await self._gateway.__aenter__()
        except OSError as error:
            self._gateway = None
            raise ConfigError(
                f"gateway-host {options.gateway_host}: {error.strerror or error}"
            ) from error
        if options.callback_url is not None:
            self._callback = Callback(options.callback_url)

    async def close(self) -> None:
        """See `Method`."""
        callback, self._callback = self._callback, None
        if callback is not None:
            await callback.close()
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            await gateway.__aexit__()

    async def run(self, rollout: Rollout[TaskT], policy: AnyPolicy) -> Episode:
        """See `Method`."""
        if not isinstance(policy, Policy):
            raise ConfigError(
                f"{type(self).__name__}: an agent behind the gateway needs a policy of tokens, not"
                " an endpoint; point the agent itself at the endpoint"
            )
        assert self._gateway is not None, "open comes first"
        options, started = self.options, time.perf_counter()
        bounds = Bounds(
            max_turns=options.max_turns,
            max_open=options.max_requests_at_once,
            turn_deadline_s=options.turn_deadline_s,
            constrained=options.constrained,
        )
        async with self._gateway.rollout(policy, rollout, bounds) as (url, record):
            try:
                ending, score = await self._play(url, record, rollout.task)
            except BoundaryError as error:
                ending, score = Ending.lost(record.failure or error), None
        if record.aborted:
            ending, score = Ending.cancelled(), None
        return Episode(
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
            task_id=rollout.task_id,
            segments=record.samples().samples,
            ending=ending,
            score=score,
            transcript=record.transcript(),
            metrics=record.metrics(),
            info=record.info(),
            wall_s=time.perf_counter() - started,
        )

    async def _play(self, url: str, record: Record, task: TaskT) -> tuple[Ending, float | None]:
        """How it ended; an agent whose engine failed is not waited for."""
        playing = asyncio.ensure_future(self._attributed(url, task))
        failing = asyncio.ensure_future(record.failed.wait())
        try:
            await asyncio.wait([playing, failing], return_when=asyncio.FIRST_COMPLETED)
            if record.failure is not None:
                raise record.failure
            result = await playing
        except BoundaryError as error:
            if error.boundary is Boundary.HARNESS and record.limit is not None:
                return Ending.stopped(record.limit), self.options.limit_score
            raise
        finally:
            playing.cancel()
            failing.cancel()
            await asyncio.gather(playing, failing, return_exceptions=True)
        if not record.counts["turns"]:
            raise BoundaryError(Boundary.HARNESS, "the agent asked for no turn")
        if not isinstance(result, _Graded):
            result = await self._grade(task, result)
        limit: Limit | None = record.limit
        return Ending.stopped(limit) if limit else Ending.finished(), result.score

    async def _attributed(self, url: str, task: TaskT) -> Any:
        async with crossing(Boundary.HARNESS, deadline_s=self.options.harness_deadline_s):
            if self._callback is not None:
                return await self._callback.run(url, self.describe(task))
            return await self.agent(url, task)

    async def _grade(self, task: TaskT, result: Any) -> _Graded:
        async with crossing(Boundary.JUDGE, deadline_s=self.options.reward_deadline_s):
            return _Graded(as_score(await asyncio.to_thread(self.reward, task, result)))


class _Graded:
    """A score that was computed while the workspace was there."""

    __slots__ = ("score",)

    def __init__(self, score: float) -> None:
        self.score = score
