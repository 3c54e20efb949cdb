"""What a run of tau may choose: [tau] of its file, --tau.KEY on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator
from taubench.actions import SeveralCalls
from taubench.prompts import PromptView, prompt_view
from taubench.source import SPLITS
from taubench.strategies import Strategy, strategy_view
from taubench.users import UserConfig
from turnwise.method import MethodOptions
from turnwise.models import JudgeModelConfig

Env = Literal[
    "retail", "airline", "tau2-retail", "tau2-airline", "tau2-telecom", "tau2-telecom-workflow",
    "tau2-telecom-solo", "tau2-mock",
]  # fmt: skip
TAU2 = "tau2-"
TAU2_ENVS = tuple(env for env in get_args(Env) if env.startswith(TAU2))
TaskSplit = Literal["train", "dev", "test", "base", "full", "small", "rest"]
TURNS = {"compact": 8, "full": 30}
"""Most turns of an episode by the prompt: upstream's tasks take up to 30."""
USER_DEADLINE_S = 120.0
USER_SHARE = 11 / 12
"""Of the episode's deadline for a message, what the user's own takes at most: its error says what
the endpoint did, the episode's only that nothing came."""


def is_tau2(env: object) -> bool:
    """Whether a data row's or a run's `env` is one of τ²-bench."""
    return isinstance(env, str) and env.startswith(TAU2)


class TauOptions(MethodOptions):
    """The same names, meanings and defaults on every backend and in evaluation."""

    env: Env = "retail"
    """Benchmark and domain of the tasks. A data row that names another one goes before it."""
    task_split: TaskSplit | None = None
    """Split of data rows that name none; where not given train, or test for airline, which has no
    other. τ²-bench has base (train and test), full and small, and rest: full without base."""
    task_set: Literal["v1.0", "26.3"] | None = None
    """Version of τ²-bench's tasks; where not given the newest of the domain."""
    prompt: Literal["full", "compact"] = "full"
    """What the policy is shown: the whole policy document, or a short prompt with five tools of
    retail for policies of a few million parameters."""
    agent_strategy: Strategy = "tool-calling"
    """How the policy is prompted and its text read. few-shot leaves the tasks that it shows out."""
    several_calls: SeveralCalls | None = None
    """What to do with more than one call in a turn; where not given `first`, and `all` in τ²-bench,
    as upstream does."""
    max_turns: int | None = Field(default=None, ge=1)
    """Sampled turns after which an episode stops; where not given 8 with the compact prompt, 30
    with the full one; in τ²-bench max-steps alone counts then."""
    max_steps: int = Field(default=200, ge=1)
    """τ²-bench: messages of both sides and rounds of tool calls, after which an episode stops."""
    max_errors: int = Field(default=10, ge=1)
    """τ²-bench: failed calls of both sides in all, after which an episode stops."""
    max_format_errors: int = Field(default=3, ge=1)
    """Turns in a row without a readable call after which an episode stops."""
    engine_deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for each sampled turn, repeats of a request included."""
    user_deadline_s: float | None = Field(default=None, gt=0)
    """Seconds that an episode waits for each message of the user. The user's own deadline ends
    before it: where this is not given, it is 120 or 12/11 of user.deadline-s, whichever is more;
    where user.deadline-s is not given, that is 11/12 of this; where both are, they must fit."""
    user: UserConfig = Field(default_factory=UserConfig, validate_default=True)
    """[tau.user]: who plays the user."""
    include_failing_ground_truth: bool = False
    """Train also on tasks whose annotated write fails."""
    nl_assertions: Literal["judge", "met"] = "judge"
    """τ²-bench: sentences that must be true of a conversation are told by the judge, or taken as
    met, which is said beside the score."""
    judge: JudgeModelConfig | None = None
    """[tau.judge]: the model that tells them; τ²-bench retail v1.0 alone needs one."""
    judge_cache: Path | None = None
    """JSONL file of the judge's verdicts, which are used again; none keeps them in memory."""
    strict: bool = False
    """τ²-bench: close the holes of the official grading, for training; the score is another one
    then (libs/taubench lists them)."""
    keep_trajectory: bool = False
    """τ²-bench: keep each conversation in upstream's form among the episode's facts."""

    @property
    def view(self) -> PromptView:
        """What the policy is shown, as its strategy shows it."""
        return strategy_view(self.agent_strategy, prompt_view(self.prompt))

    @property
    def turns(self) -> int:
        """Sampled turns after which an episode stops."""
        return self.max_turns or TURNS[self.prompt]

    @property
    def message_deadline_s(self) -> float:
        """Seconds that an episode waits for each message of the user."""
        return self.user_deadline_s or max(USER_DEADLINE_S, self.user.deadline_s / USER_SHARE)

    @property
    def row_split(self) -> str:
        """The split of data rows that name none, of tau-bench."""
        return self.task_split or next(iter(SPLITS[self.env]))

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
        if is_tau2(self.env):
            return self
        if self.row_split not in SPLITS[self.env]:
            raise ValueError(
                f"task-split: {self.env} has {', '.join(SPLITS[self.env])}, "
                f"found {self.task_split!r}"
            )
        if self.prompt == "compact" and self.env != "retail":
            raise ValueError(f"prompt: compact shows retail alone; use full for {self.env}")
        return self
