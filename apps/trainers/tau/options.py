"""What a run of tau may choose: [tau] of its file, --tau.KEY on the command line."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from taubench.actions import SeveralCalls
from taubench.prompts import PromptView, prompt_view
from taubench.source import SPLITS
from taubench.strategies import Strategy, strategy_view
from taubench.users import UserConfig
from turnwise.method import MethodOptions

TURNS = {"compact": 8, "full": 30}
"""Most turns of an episode by the prompt: upstream's tasks take up to 30."""
USER_DEADLINE_S = 120.0
USER_SHARE = 11 / 12
"""Of the episode's deadline for a message, what the user's own takes at most: its error says what
the endpoint did, the episode's only that nothing came."""


class TauOptions(MethodOptions):
    """The same names, meanings and defaults on every backend and in evaluation."""

    env: Literal["retail", "airline"] = "retail"
    """Domain of the tasks. A data row that names another one goes before it."""
    task_split: Literal["train", "dev", "test"] | None = None
    """Split of data rows that name none; where not given train, or test for airline, which has no
    other."""
    prompt: Literal["full", "compact"] = "full"
    """What the policy is shown: the whole policy document, or a short prompt with five tools of
    retail for policies of a few million parameters."""
    agent_strategy: Strategy = "tool-calling"
    """How the policy is prompted and its text read. few-shot leaves the tasks that it shows out."""
    several_calls: SeveralCalls = "first"
    """What to do with more than one call in a turn."""
    max_turns: int | None = Field(default=None, ge=1)
    """Sampled turns after which an episode stops; where not given 8 with the compact prompt, 30
    with the full one."""
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
        """The split of data rows that name none."""
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
        if self.row_split not in SPLITS[self.env]:
            raise ValueError(
                f"task-split: {self.env} has {', '.join(SPLITS[self.env])}, "
                f"found {self.task_split!r}"
            )
        if self.prompt == "compact" and self.env != "retail":
            raise ValueError(f"prompt: compact shows retail alone; use full for {self.env}")
        return self
