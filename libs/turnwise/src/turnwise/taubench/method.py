"""tau-bench as a method: `turnwise.method` makes it by the name `tau`.

A data row's prompt is the task's index in its split; `env` and `task_split` of its metadata go
before those of the options, so that one run trains on one split and evaluates on another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import Field

from turnwise.config import ConfigError
from turnwise.episode import Episode
from turnwise.launch.preset import TauConfig
from turnwise.method import Job, Method
from turnwise.taubench import SourceError, Task, load_tasks
from turnwise.taubench.episode import Services, default_services, run_episode
from turnwise.users import UserConfig, UserMaker


class TauOptions(TauConfig):
    """[tau] of a run's file, `args.turnwise` in slime."""

    user: dict[str, Any] = Field(default_factory=dict)
    """Further options of the customer, as `turnwise.users.UserConfig` has them: `concurrency`,
    `requests_per_minute`, `spend_cap_usd`, `user_cache`, ..."""


class TauMethod(Method):
    """See `turnwise.taubench.episode`."""

    def __init__(self, options: TauOptions) -> None:
        if options.agent_strategy != "tool-calling":
            raise ConfigError(f"agent-strategy: the hooks can't play {options.agent_strategy}")
        self._options = options
        self._users = _users(options)
        services = default_services(options.prompt)
        # The compact view goes with an offline customer of its own.
        own = options.user_strategy == "offline" and options.prompt == "compact"
        self._services = replace(
            services,
            user=services.user if own else self._users,
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
        services: Services = replace(self._services, user=job.wrap_user(self._services.user))
        return await run_episode(
            task,
            job.policy,
            services,
            rollout_id=job.rollout_id,
            group_id=job.group_id,
            seed=job.seed,
        )

    def metrics(self) -> Mapping[str, float]:
        """Requests, tokens, US dollars, repeats and cache hits of the customers."""
        return self._users.metrics()

    async def close(self) -> None:
        """Closes the connections to the customers' endpoint."""
        await self._users.close()

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
    return TauMethod(TauOptions(**options))


@cache
def _tasks(domain: str, split: str) -> tuple[Task, ...]:
    try:
        return load_tasks(domain, split)
    except (SourceError, ValueError) as error:
        raise ConfigError(f"tasks of {domain} {split}: {error}") from error


def _users(options: TauOptions) -> UserMaker:
    given = {
        "strategy": options.user_strategy,
        "model": options.user_model,
        "base_url": options.user_url,
        "key_env": options.user_key_env,
    }
    try:
        return UserMaker(UserConfig(**{**given, **options.user}))
    except ConfigError as error:
        raise ConfigError(f"user: {error}") from None
