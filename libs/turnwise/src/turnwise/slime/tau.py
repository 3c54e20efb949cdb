"""tau-bench as a method for the hooks.

A data row's prompt is the task's index in its split; `env` and `task_split` of its metadata go
before those of `args.turnwise`, so that one run trains on one split and evaluates on another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from pydantic import Field

from turnwise.config import ConfigError
from turnwise.episode import Episode
from turnwise.launch.preset import TauConfig
from turnwise.slime.settings import Job
from turnwise.taubench import SourceError, Task, load_tasks
from turnwise.taubench.episode import Services, default_services, run_episode
from turnwise.users import OfflineUser, User


class TauOptions(TauConfig):
    """`args.turnwise` of the method tau: the options of a run's [tau], and further ones."""

    prompt: Literal["full", "compact"] = "full"
    """What the policy is shown; `compact` is for policies of a few million parameters."""
    several_calls: Literal["first", "all", "error"] = "first"
    """What to do with more than one call in a turn."""
    max_format_errors: int = Field(default=3, ge=1)
    """Turns in a row without a readable call after which an episode stops."""
    user_deadline_s: float = Field(default=120.0, gt=0)
    """Seconds for each message of the customer."""
    engine_deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for each sampled turn, repeats of a request included."""


class TauMethod:
    """See `turnwise.taubench.episode`. Keeps `Method`."""

    fans_out = False

    def __init__(self, options: TauOptions) -> None:
        self._options = options
        self._user = _user_maker(options)
        self._services = replace(
            default_services(options.prompt),
            several_calls=options.several_calls,
            max_turns=options.max_turns,
            max_format_errors=options.max_format_errors,
            user_deadline_s=options.user_deadline_s,
            engine_deadline_s=options.engine_deadline_s,
        )
        # Reads the tasks now, in the thread that builds the method.
        _tasks(options.env, options.task_split)

    async def run(self, job: Job) -> Episode:
        """See `Method`."""
        task = self._task(job)
        maker = self._user if self._user is not None else self._services.user
        services: Services = replace(self._services, user=job.wrap_user(maker))
        return await run_episode(
            task,
            job.policy,
            services,
            rollout_id=job.rollout_id,
            group_id=job.group_id,
            seed=job.seed,
        )

    def _task(self, job: Job) -> Task:
        domain = job.metadata.get("env", self._options.env)
        split = job.metadata.get("task_split", self._options.task_split)
        tasks = _tasks(domain, split)
        text = str(job.prompt)
        index = int(text) if text.isdecimal() else -1
        if not 0 <= index < len(tasks):
            raise ConfigError(
                f"--prompt-data: {domain} {split} has tasks 0 to {len(tasks) - 1}, a row has "
                f"{text[:80]!r}; is --input-key index?"
            )
        return tasks[index]


def make_method(options: Mapping[str, Any]) -> TauMethod:
    """
    Raises:
        ConfigError: an unknown or wrong option, or tau-bench's data is missing.
    """
    try:
        return TauMethod(TauOptions(**options))
    except ConfigError as error:
        raise ConfigError(f"turnwise.{error}") from None


@cache
def _tasks(domain: str, split: str) -> tuple[Task, ...]:
    try:
        return load_tasks(domain, split)
    except (SourceError, ValueError) as error:
        raise ConfigError(f"tasks of {domain} {split}: {error}") from error


def _user_maker(options: TauOptions) -> Callable[[], User] | None:
    if options.agent_strategy != "tool-calling":
        raise ConfigError(f"agent-strategy {options.agent_strategy} can't be played by the hooks")
    if options.user_strategy == "offline":
        return None if options.prompt == "compact" else OfflineUser
    raise ConfigError(f"user-strategy {options.user_strategy} can't be played by the hooks")
