"""tau-bench as a method: `turnwise.method` makes it by the name `tau`.

A data row's prompt is the task's index in its split; `env` and `task_split` of its metadata go
before those of the options, so that one run trains on one split and evaluates on another.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import toolparse
from pydantic import Field, ValidationInfo, field_validator, model_validator
from turnwise.command import StopRun
from turnwise.config import Config, ConfigError
from turnwise.episode import Episode
from turnwise.method import Job, Method
from turnwise.users import User, UserConfig, UserMaker

from taubench.actions import SeveralCalls
from taubench.episode import Services, default_services, run_episode
from taubench.fewshot import demonstrated
from taubench.prompts import PromptView, prompt_view
from taubench.source import SPLITS, SourceError
from taubench.strategies import Strategy, strategy_view
from taubench.task import Task
from taubench.tasks import load_tasks

USER_SHARE = 11 / 12
"""Of the episode's patience with the customer, what the customer's own deadline takes at most: its
error says what the endpoint did, the episode's only that nothing came."""


class TauOptions(Config):
    """[tau] of a run's file, `args.turnwise` in slime."""

    env: Literal["retail", "airline"] = "retail"
    """Domain of the training tasks. A data row that names another one goes before it."""
    task_split: Literal["train", "dev", "test"] = "train"
    """Split of the training tasks; airline has `test` alone."""
    agent_strategy: Strategy = "tool-calling"
    """How the policy is prompted and its text read."""
    max_turns: int = Field(default=30, ge=1)
    """Turns of the agent after which an episode stops."""
    prompt: Literal["full", "compact"] = "full"
    """What the policy is shown; `compact` is for policies of a few million parameters."""
    several_calls: SeveralCalls = "first"
    """What to do with more than one call in a turn."""
    max_format_errors: int = Field(default=3, ge=1)
    """Turns in a row without a readable call after which an episode stops."""
    user_deadline_s: float = Field(default=120.0, gt=0)
    """Seconds for each message of the customer."""
    engine_deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for each sampled turn, repeats of a request included."""
    user: UserConfig = Field(default_factory=UserConfig, validate_default=True)
    """[tau.user]: who plays the customer. Without its own, deadline-s is 11/12 of
    user-deadline-s."""
    tool_format: str | None = None
    """How the policy writes calls, a name of `toolparse.formats()`; without it
    sglang-tool-call-parser, else qwen25."""
    on_rewrite: Literal["keep", "fork", "error"] = "keep"
    """What to do where the chat template rewrites history (see `tokendelta.Session`)."""

    @property
    def view(self) -> PromptView:
        """What the policy is shown, as its strategy shows it."""
        return strategy_view(self.agent_strategy, prompt_view(self.prompt))

    @field_validator("tool_format")
    @classmethod
    def _format_exists(cls, name: str | None) -> str | None:
        formats = list(toolparse.formats())
        if name is not None and name not in formats:
            near = difflib.get_close_matches(name, formats, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(formats)}"
            raise ValueError(f"unknown format of tool calls {name!r}; {hint}")
        return name

    @field_validator("user")
    @classmethod
    def _ends_first(cls, user: UserConfig, info: ValidationInfo) -> UserConfig:
        limit_s = info.data.get("user_deadline_s")
        if limit_s is None:
            return user
        if "deadline_s" not in user.model_fields_set:
            return user.model_copy(update={"deadline_s": USER_SHARE * limit_s})
        if user.deadline_s >= limit_s:
            raise ValueError(
                f"deadline-s: {user.deadline_s:g} must be below user-deadline-s {limit_s:g}, or "
                "the episode gives up first"
            )
        return user

    @model_validator(mode="after")
    def _fits_together(self) -> TauOptions:
        if self.task_split not in SPLITS[self.env]:
            raise ValueError(
                f"task-split: {self.env} has {', '.join(SPLITS[self.env])}, "
                f"found {self.task_split!r}"
            )
        if self.user.strategy == "human":
            raise ValueError(
                "user.strategy: nobody could answer for the customers of many episodes at once; "
                "use llm or offline"
            )
        return self


class TauMethod(Method):
    """See `taubench.episode`."""

    def __init__(self, options: TauOptions, *, make_user: Callable[[], User] | None = None) -> None:
        """
        Args:
            options: The run's.
            make_user: Makes the customer of an episode in place of those of the options.

        Raises:
            ConfigError: tau-bench's data is missing, the strategy does not go with the domain, or
                the customers' key is not set.
        """
        self._options = options
        services = default_services(options.prompt)
        self._services = replace(
            services,
            view=options.view,
            several_calls=options.several_calls,
            max_turns=options.max_turns,
            max_format_errors=options.max_format_errors,
            user_deadline_s=options.user_deadline_s,
            engine_deadline_s=options.engine_deadline_s,
        )
        # Reads the tasks and makes the prompt now, in the thread that builds the method.
        self._check_shown(options.env)
        _tasks(options.env, options.task_split)
        self._users: UserMaker | None = None
        # The compact view goes with an offline customer of its own.
        own = options.user.strategy == "offline" and options.prompt == "compact"
        self._make_user = make_user or (services.user if own else None)
        if make_user is None and not options.user.sglang:
            self._users = _make_users(options.user)

    def connect(self, server: Callable[[str], str]) -> None:
        """See `Method`: finds the customers that slime serves itself."""
        if self._make_user is None and self._users is None:
            try:
                there = self._options.user.served_at(server)
            except ConfigError as error:
                raise ConfigError(f"user.sglang: {error}") from None
            self._users = _make_users(there)

    async def run(self, job: Job) -> Episode:
        """See `Method`.

        Raises:
            StopRun: the customers have reached the spend cap; all later episodes would be lost.
        """
        task = self._task(job)
        user = self._make_user or self._users
        if user is None:
            raise ConfigError("user.sglang: is for runs through slime, which serves it")
        services: Services = replace(self._services, user=job.wrap_user(user))
        episode = await run_episode(
            task,
            job.policy,
            services,
            rollout_id=job.rollout_id,
            group_id=job.group_id,
            seed=job.seed,
        )
        refusal = self._users.spend.refusal if self._users is not None else ""
        if refusal and episode.score is None:
            raise StopRun(f"user.spend-cap-usd: {refusal}")
        return episode

    def metrics(self) -> Mapping[str, float]:
        """Requests, tokens, US dollars, repeats and cache hits of the customers."""
        return self._users.metrics() if self._users is not None else {}

    async def close(self) -> None:
        """Closes the connections to the customers' endpoint."""
        if self._users is not None:
            await self._users.close()

    def _task(self, job: Job) -> Task:
        domain = job.metadata.get("env", self._options.env)
        split = job.metadata.get("task_split", self._options.task_split)
        self._check_shown(domain)
        tasks = _tasks(domain, split)
        text = str(job.prompt)
        index = int(text) if text.isdecimal() else -1
        if not 0 <= index < len(tasks):
            raise ConfigError(
                f"--prompt-data: {domain} {split} has tasks 0 to {len(tasks) - 1}, a row has "
                f"{text[:80]!r}; is --input-key index?"
            )
        shown = demonstrated(domain) if self._options.agent_strategy == "few-shot" else ()
        if tasks[index].id in {task.id for task in shown}:
            raise ConfigError(
                f"--prompt-data: {tasks[index].id} is a demonstration of agent-strategy few-shot, "
                "so its answer stands in the prompt; write the rows anew: tau:prepare -- "
                "--exclude demonstrated"
            )
        return tasks[index]

    def _check_shown(self, domain: str) -> None:
        """Raises ConfigError if there is no prompt for the domain."""
        try:
            self._services.view.system(domain)
        except (SourceError, ValueError) as error:
            raise ConfigError(f"agent-strategy {self._options.agent_strategy}: {error}") from None


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


def _make_users(config: UserConfig) -> UserMaker:
    try:
        return UserMaker(config)
    except ConfigError as error:
        raise ConfigError(f"user.{error}") from None
