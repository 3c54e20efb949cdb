"""AgentFlow as a method: for slime's hooks, and for evaluators.

A data row is a question: its prompt is text, or messages of which the last one of the user counts;
its label is the answer. Models, sandbox and judge are started with the first episode, which fails
with a `ConfigError` if one of them can't be had, before anything is sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from sandbox import Sandbox, SandboxUnavailable
from turnwise.config import ConfigError
from turnwise.episode import BoundaryError, Episode
from turnwise.judge import Judge
from turnwise.method import Job, Method
from turnwise.models import FrozenModel, Models, make_models
from turnwise.policy import Policy

from apps.trainers.agentflow.config import ROLES, AgentFlowOptions
from apps.trainers.agentflow.episode import run_episode
from apps.trainers.agentflow.helpers import rule_models
from apps.trainers.agentflow.prompts import make_prompts
from apps.trainers.agentflow.services import Question, Services
from apps.trainers.agentflow.toolbox import make_toolbox
from apps.trainers.agentflow.tools.tool import ToolParts

JUDGE = "judge"


class AgentFlowMethod(Method):
    """See `apps.trainers.agentflow.episode`; a segment for each turn of the planner."""

    fans_out = True

    def __init__(self, options: AgentFlowOptions) -> None:
        """
        Raises:
            ConfigError: an option names what there is not, or a model's key is not set.
        """
        self._options = options
        self._server: Callable[[str], str] | None = None
        self._models: Models | None = None
        self._judge: Judge | None = None
        self._sandbox: Sandbox | None = None
        self._services: Services | None = None
        self._opening = asyncio.Lock()

    def connect(self, server: Callable[[str], str]) -> None:
        """See `Method`: where slime serves the models of `sglang`."""
        self._server = server

    async def run(self, job: Job) -> Episode:
        """See `Method`."""
        question = to_question(job)
        services = await self._open(job.policy)
        return await run_episode(
            question,
            job.policy,
            services,
            rollout_id=job.rollout_id,
            group_id=job.group_id,
            seed=job.seed,
        )

    def metrics(self) -> Mapping[str, float]:
        """Of each model requests, tokens and US dollars; of the judge what it graded, and how."""
        models = self._models.metrics() if self._models is not None else {}
        judge = self._judge.metrics() if self._judge is not None else {}
        return {**models, **judge}

    async def close(self) -> None:
        """Stops sandbox and judge and closes connections; a later episode opens them again."""
        sandbox, self._sandbox, self._services = self._sandbox, None, None
        self._opening = asyncio.Lock()
        if sandbox is not None:
            await sandbox.close()
        if self._judge is not None:
            await self._judge.close()
        if self._models is not None:
            await self._models.close()

    async def _open(self, policy: Policy) -> Services:
        async with self._opening:
            if self._services is None:
                self._services = await self._start(policy)
            return self._services

    async def _start(self, policy: Policy) -> Services:
        options = self._options
        if self._models is None:
            self._models = self._make_models(policy)
            self._judge = Judge(options.judge, model=self._models.get(JUDGE))
        assert self._judge is not None
        try:
            await self._models.check()
        except BoundaryError as error:
            raise ConfigError(f"models: {error}") from None
        try:
            await self._judge.check()
        except BoundaryError as error:
            raise ConfigError(f"judge: {error}") from None
        roles = _roles(options, self._models)
        sandbox = Sandbox(options.sandbox)
        prompts = make_prompts(options.prompt)
        parts = ToolParts(
            models=roles, prompts=prompts, sandbox=sandbox, documents=options.documents
        )
        toolbox = await asyncio.to_thread(make_toolbox, options.tools, parts)
        if any(tool.runs_code for tool in toolbox):
            try:
                await sandbox.start()
            except SandboxUnavailable as error:
                raise ConfigError(f"sandbox.isolation: {error}") from None
            self._sandbox = sandbox
        return Services(
            executor=roles["executor"],
            verifier=roles["verifier"],
            final=roles["final"],
            toolbox=toolbox,
            judge=self._judge,
            prompts=prompts,
            budgets=options.budgets,
            on_malformed=options.on_malformed,
            max_retries=options.max_retries,
            malformed_penalty=options.malformed_penalty,
            executor_retries=options.executor_retries,
        )

    def _make_models(self, policy: Policy) -> Models:
        options = self._options
        configs = dict(options.models.by_name())
        if options.models.judge is not None:
            configs[JUDGE] = options.models.judge
        try:
            # In slime an engine belongs to its episode, so none is there for helpers.
            local = None if self._server is not None else policy
            made = make_models(configs, sglang=self._server, policy=local)
        except ConfigError as error:
            raise ConfigError(f"models.{error}") from None
        return Models({**rule_models(), **made}) if options.helpers == "rules" else made


def make_method(options: Mapping[str, Any]) -> AgentFlowMethod:
    """
    Raises:
        ConfigError: an unknown or wrong option.
    """
    return AgentFlowMethod(AgentFlowOptions(**options))


def to_question(job: Job) -> Question:
    """The question of a data row.

    Raises:
        ConfigError: the prompt is no text and no messages, or the label is empty.
    """
    text = _last_words(job.prompt) if not isinstance(job.prompt, str) else job.prompt
    if not text.strip():
        raise ConfigError(f"--prompt-data: a row's prompt has no question: {job.prompt!r:.80}")
    answer = "" if job.label is None else str(job.label)
    if not answer.strip():
        raise ConfigError(
            f"--prompt-data: the row of {text[:80]!r} has no answer; is --label-key right?"
        )
    name = job.metadata.get("id")
    return Question(
        id=str(name) if name is not None else job.group_id,
        text=text,
        answer=answer,
        metadata=dict(job.metadata),
    )


def _last_words(prompt: object) -> str:
    """The content of the user's last message."""
    messages = prompt if isinstance(prompt, list | tuple) else ()
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""


def _roles(options: AgentFlowOptions, models: Models) -> dict[str, FrozenModel]:
    """Models by role; a role that nobody plays is left out."""
    if options.helpers == "rules":
        return {role: models[role] for role in ROLES}
    players = {role: options.models.player(role) for role in ROLES}
    return {role: models[name] for role, name in players.items() if name is not None}
