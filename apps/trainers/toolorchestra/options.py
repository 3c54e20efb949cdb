"""The options of ToolOrchestra: frozen experts, tools, budgets and the reward.

Defaults are those of the published run where it has them, on every backend. The run on a laptop
names what it has otherwise in `presets/laptop.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from sandbox import SandboxConfig
from taubench.tau2.users import UserConfig
from turnwise.config import Config, ConfigError
from turnwise.judge import JudgeConfig
from turnwise.method import MethodOptions
from turnwise.models import JudgeModelConfig, ModelConfig
from turnwise.models.config import check_url

from apps.trainers.toolorchestra.tables import (
    Expert,
    read_experts,
    read_preferences,
    undashed,
)

PromptName = Literal["full", "compact"]
RewardName = Literal["preference", "utility", "original", "correctness"]
JUDGE = "judge"


class RetrievalOptions(Config):
    """Where the tool search looks."""

    url: str = ""
    """A server of `apps/services/retrieval`, such as http://HOST:8000."""
    documents: Path | None = None
    """JSONL file of documents, searched by BM25 in this process where there is no url."""
    topk: int = Field(default=5, ge=1, le=1000)
    """Documents of a search."""
    characters: int = Field(default=500, ge=1)
    """Of each document."""
    deadline_s: float = Field(default=30.0, gt=0)
    """Seconds for a search, repeats included."""
    concurrency: int = Field(default=64, ge=1)
    """Requests under way at most."""
    price: float = Field(default=0.0, ge=0)
    """US dollars for each search, beside the expert's."""

    @property
    def given(self) -> bool:
        """Whether there is anything to look in."""
        return bool(self.url) or self.documents is not None

    @model_validator(mode="after")
    def _is_one_place(self) -> RetrievalOptions:
        if self.url and self.documents is not None:
            raise ValueError("give url or documents, found both")
        if self.url:
            check_url(self.url)
        return self


class BreakerOptions(Config):
    """When an expert that fails is left alone."""

    failures: int = Field(default=5, ge=1)
    """Questions without an answer in a row after which nobody asks."""
    pause_s: float = Field(default=30.0, gt=0)
    """Seconds until one question is tried again."""


class ToolOrchestraOptions(MethodOptions):
    """The section `[toolorchestra]` of a run, which reaches slime's hooks as `args.turnwise`."""

    experts: Literal["models", "rules"] = "models"
    """Who the experts are: frozen models, or rules that know the generated questions alone."""
    models: dict[str, ModelConfig] = Field(default_factory=dict)
    """Frozen models by the name that a table of experts calls them: [toolorchestra.models.NAME]."""
    judge_model: JudgeModelConfig | None = None
    """Grades what the rule can't; without one such an answer counts as wrong, and what a customer's
    task asserts in words as met (`assumed_assertions` counts it)."""
    judge: JudgeConfig = JudgeConfig()
    """How answers are graded."""
    table: tuple[Expert, ...] = ()
    """[[toolorchestra.table]]: the experts of data rows that bring none."""
    preferences: dict[str, float] = Field(default_factory=dict)
    """Weights of data rows that bring none: accuracy, cost, latency, and roles of the table."""
    retrieval: RetrievalOptions = RetrievalOptions()
    """[toolorchestra.retrieval]: where the tool search looks."""
    prompt: PromptName = "full"
    """How the policy is shown experts and tools: by its chat template, with calls in its own
    format; or in the fewest tokens, a turn being the line `TOOL ROLE`, which it must know."""
    reward: RewardName = "preference"
    """What the members of a group get: see `apps.trainers.toolorchestra.reward`."""
    latency: Literal["tokens", "seconds"] = "tokens"
    """What latency is: tokens that experts wrote, or seconds, which a shared server blurs."""
    policy_read_price: float | None = Field(default=None, ge=0)
    """US dollars per million tokens that the policy reads; those of the row's cheapest expert where
    not given, as published."""
    policy_write_price: float | None = Field(default=None, ge=0)
    """US dollars per million tokens that the policy writes."""
    run_code: bool = True
    """Whether the expert of enhance_reasoning writes a program, which the sandbox runs; words alone
    where not."""
    sandbox: SandboxConfig = SandboxConfig()
    """Isolation and limits of a program."""
    max_turns: int = Field(default=12, ge=1)
    """Turns of an episode."""
    on_malformed: Literal["retry", "stop"] = "retry"
    """A turn that names no tool: answered with what is wrong, or the end as published."""
    max_retries: int = Field(default=2, ge=0)
    """Such turns of an episode that are answered (on-malformed retry)."""
    result_characters: int = Field(default=4_096, ge=1)
    """What a tool gives the policy is cut in the middle beyond this."""
    context_characters: int = Field(default=24_000, ge=1)
    """All that was found so far, as experts are shown it; the oldest goes first."""
    turn_room: int = Field(default=1_024, ge=1)
    """Tokens that a prompt keeps free for a turn, at most a quarter of the context: where they are
    not there, the oldest results are taken out of the history."""
    engine_deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for each turn of the policy."""
    wall_s: float = Field(default=1_800.0, gt=0)
    """Seconds of an episode; beyond them it is lost."""
    customer: UserConfig = Field(default_factory=lambda: UserConfig(strategy="offline"))
    """[toolorchestra.customer]: who plays the customers of tau2-bench."""
    customer_deadline_s: float = Field(default=120.0, gt=0)
    """Seconds that an episode waits for each message of a customer."""
    customer_steps: int = Field(default=48, ge=1)
    """Steps of a conversation with a customer, as tau2-bench counts them."""
    transfer: bool = False
    """Whether policy and experts may transfer a customer to a human, which ends the episode."""
    breaker: BreakerOptions = BreakerOptions()
    """When an expert that fails is left alone."""
    cache: Path | None = None
    """JSONL file of experts' answers, which are given again to the same question; off, since the
    members of a group then differ less than the experts do."""
    eval_per_cell: int = Field(default=4, ge=1)
    """Generated questions of each kind to evaluate on, where no data file is named."""

    @field_validator("models", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return _tables(value) if isinstance(value, Mapping) else value

    @field_validator("table", mode="before")
    @classmethod
    def _lines(cls, value: Any) -> Any:
        return read_experts(value, "table") if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _fits_together(self) -> ToolOrchestraOptions:
        if self.preferences:
            read_preferences(self.preferences, self.table, "preferences")
        if self.experts == "rules" and self.models:
            raise ValueError("models: experts rules take none")
        if JUDGE in self.models:
            raise ValueError(f"models: {JUDGE} is the grader's name; give that one as judge-model")
        for expert in self.table if self.experts == "models" else ():
            if expert.model not in self.models:
                known = ", ".join(self.models) or "none"
                raise ValueError(
                    f"table: {expert.role} is played by {expert.model!r}, which is no model of"
                    f" [toolorchestra.models]; there are: {known}"
                )
        return self


def _tables(value: Mapping[str, Any]) -> dict[str, Any]:
    """Models as a file or a command line (`large.base-url`) has them, with field names."""
    found: dict[str, Any] = {}
    for key, one in value.items():
        if isinstance(one, Mapping):
            found[key] = {**undashed(one), **_fields(found.get(key, {}), key)}
            continue
        # A model's name may have dots of its own, an option has none.
        name, dot, field = str(key).rpartition(".")
        if dot and isinstance(one, str):
            found[name] = {**_fields(found.get(name, {}), name), field.replace("-", "_"): one}
        else:
            found[key] = one
    return found


def _fields(one: Any, name: str) -> dict[str, Any]:
    if isinstance(one, ModelConfig):
        return one.model_dump(exclude_unset=True)
    if not isinstance(one, Mapping):
        raise ConfigError(f"models.{name}: expected a table, found {one!r:.60}")
    return dict(one)
