"""AgentFlow as a method, on every backend: see `apps.trainers.agentflow.episode`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokendelta
from sandbox import Sandbox, SandboxUnavailable
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.episode import BoundaryError, Episode
from turnwise.judge import Judge
from turnwise.method import Method, Services
from turnwise.models import ModelConfig, Models, make_models
from turnwise.policy import AnyPolicy
from turnwise.rollout import Rollout
from turnwise.rows import Row

from apps.trainers.agentflow.config import AgentFlowOptions
from apps.trainers.agentflow.episode import run_episode
from apps.trainers.agentflow.helpers import Helpers, first_prompt
from apps.trainers.agentflow.laptop import tasks as generated
from apps.trainers.agentflow.laptop.baselines import TOOLS, fixed_tools
from apps.trainers.agentflow.laptop.rules import rule_models
from apps.trainers.agentflow.prompts import make_prompts
from apps.trainers.agentflow.question import Question, to_question
from apps.trainers.agentflow.toolbox import make_toolbox
from apps.trainers.agentflow.tools.tool import ToolParts

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan
    from turnwise.preflight import Check

FOLDER = Path(__file__).parent
JUDGE = "judge"


class AgentFlowMethod(Method[AgentFlowOptions, Question]):
    """A planner that steers frozen models and tools; a segment for each of its turns."""

    Options = AgentFlowOptions
    name = "agentflow"
    fans_out = True
    distributions = ("bm25s", "math-verify", "latex2sympy2-extended")
    # omegaconf, which slime imports, breaks beside another antlr4 than its own.
    apart = ("antlr4-python3-runtime",)
    shipped = FOLDER / "policy"
    preset = FOLDER / "presets" / "laptop.toml"

    def __init__(self, options: AgentFlowOptions) -> None:
        """See `Method`."""
        super().__init__(options)
        self._models: Models | None = None
        self._judge: Judge | None = None
        self._sandbox: Sandbox | None = None
        self._helpers: Helpers | None = None

    @property
    def helpers(self) -> Helpers:
        """Frozen models, tools and judge, after `open`."""
        if self._helpers is None:
            raise RuntimeError("agentflow: open() must be awaited before an episode")
        return self._helpers

    def task(self, row: Row) -> Question:
        """See `Method`."""
        return to_question(row)

    async def run(self, rollout: Rollout[Question], policy: AnyPolicy) -> Episode:
        """See `Method`."""
        return await run_episode(rollout, policy, self.helpers, self.options)

    async def open(self, services: Services) -> None:
        """Makes models, judge, tools and sandbox ready, and asks each for a sign of life.

        Raises:
            ConfigError: an option names what there is not.
            PreflightError: a model does not answer, nothing compares answers, or no sandbox holds.
        """
        options = self.options
        models = self._models = self._models or self._make_models(services)
        try:
            self._judge = self._judge or Judge(options.judge, model=models.get(JUDGE))
        except ConfigError as error:
            raise ConfigError(f"judge.{error}") from None
        prompts = make_prompts(options.prompt)
        roles = {role: models[name] for role, name in options.players().items()}
        sandbox = Sandbox(options.sandbox)
        parts = ToolParts(
            models=roles, prompts=prompts, sandbox=sandbox, documents=options.documents
        )
        toolbox = await asyncio.to_thread(make_toolbox, options.tools, parts)
        self._sandbox = sandbox if any(tool.runs_code for tool in toolbox) else None
        try:
            await self._ask_services(models, self._judge)
        except BaseException:
            await self.close()
            raise
        self._helpers = Helpers(
            executor=roles["executor"],
            verifier=roles["verifier"],
            final=roles["final"],
            toolbox=toolbox,
            judge=self._judge,
            prompts=prompts,
        )

    async def close(self) -> None:
        """See `Method`."""
        sandbox, self._sandbox, self._helpers = self._sandbox, None, None
        if sandbox is not None:
            await sandbox.close()
        if self._judge is not None:
            await self._judge.close()
        if self._models is not None:
            await self._models.close()

    def rows(self, split: str) -> Sequence[Row]:
        """The generated problems: `train`, `held-out`, or `tune`, on which settings were chosen."""
        return generated.rows(split, eval_per_cell=self.options.eval_per_cell)

    def prompt_tokens(self, tasks: Sequence[Question], profile: tokendelta.Profile) -> int:
        """Of the analysis of the question with the most characters."""
        longest = max(tasks, key=lambda question: len(question.text))
        content = first_prompt(longest.text, self.options)
        prompt = tokendelta.Session(profile).start([{"role": "user", "content": content}])
        assert not isinstance(prompt, tokendelta.Overflow), "no limit was given"
        return len(prompt)

    async def baselines(
        self, tasks: Mapping[str, Question], tokenizer: Any, profile: tokendelta.Profile
    ) -> Mapping[str, float]:
        """What planners score that always name the same tool, where rules are the helpers."""
        if self.options.helpers != "rules" or self.options.tools != TOOLS:
            return {}
        labels = self.helpers.prompts.labels
        return await fixed_tools(self.run, tasks, labels, tokenizer, profile)

    def about(self) -> str:
        """See `Method`."""
        return f"questions with the {self.options.prompt} prompt"

    def claim(self, split: str, *, shipped: bool) -> tuple[str, ...]:
        """See `Method`."""
        return generated.claim(split, rules=self.options.helpers == "rules", shipped=shipped)

    def players(self) -> Mapping[str, str]:
        """The sandbox's isolation in force, who helps, and who grades."""
        models = self.options.models
        named = ", ".join(f"{name} {_model(one)}" for name, one in models.by_name().items())
        judge = "rule" if models.judge is None else f"rule, then {_model(models.judge)}"
        tier = {} if self._sandbox is None else {"sandbox": str(self._sandbox.tier)}
        return {**tier, "helpers": named or "rules", "judge": judge}

    def checks(self, plan: Plan) -> Mapping[str, Check]:
        """See `Method`."""
        from apps.trainers.agentflow.checks import make_checks

        return make_checks(self.options, plan)

    def metrics(self) -> Mapping[str, float]:
        """Of each model requests, tokens and US dollars; of the judge what it graded, and how."""
        models = self._models.metrics() if self._models is not None else {}
        judge = self._judge.metrics() if self._judge is not None else {}
        return {**models, **judge}

    def _make_models(self, services: Services) -> Models:
        models = self.options.models
        given = {**models.by_name(), **({} if models.judge is None else {JUDGE: models.judge})}
        try:
            made = make_models(
                given, sglang=services.server, policy=services.policy, environ=services.environ
            )
        except ConfigError as error:
            raise ConfigError(f"models.{error}") from None
        return Models({**rule_models(), **made}) if self.options.helpers == "rules" else made

    async def _ask_services(self, models: Models, judge: Judge) -> None:
        try:
            await models.check()
        except BoundaryError as error:
            raise PreflightError(f"models: {error}") from error
        try:
            await judge.check()
        except BoundaryError as error:
            raise PreflightError(f"judge: {error}") from error
        if self._sandbox is not None:
            try:
                await self._sandbox.start()
            except SandboxUnavailable as error:
                raise PreflightError(f"sandbox.isolation: {error}") from error


def _model(config: ModelConfig) -> str:
    return config.model or config.sglang or "of the policy's engine"


METHOD = AgentFlowMethod
