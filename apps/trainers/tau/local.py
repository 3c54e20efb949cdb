"""The tau trainer on this machine: which tasks, which policy, and what its result means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import tokendelta
from pydantic import Field, model_validator
from taubench import Task, load_tasks, noop_baseline, training_tasks
from taubench.desk import USER_MAY_CHANGE, open_desk, without_demonstrated
from taubench.splits import family_splits
from taubench.strategies import Strategy
from turnwise.config import ConfigError
from turnwise.local.command import LocalTrainer
from turnwise.local.options import SHIPPED, TrainOptions
from turnwise.local.policy import LoadedPolicy
from turnwise.local.trainer import Job
from turnwise.objective import Objective
from turnwise.users import UserConfig

SHIPPED_POLICY = Path(__file__).parent / "policy"

SPLIT_CLAIM = {
    "held-out": "Held-out and training tasks are real tau-bench retail tasks that share no order"
    " and no customer; no setting was chosen on the held-out ones.",
    "tune": "Tune and training tasks are real tau-bench retail tasks that share no order and no"
    " customer; settings were chosen on the tune tasks, so the result flatters.",
    "dev": "These are upstream's dev tasks.",
    "test": "These are upstream's test tasks.",
}
FAMILY_CLAIM = (
    "Only tasks whose one write is cancelling a pending order or returning items of a delivered"
    " one: 168 of the 500 training tasks.",
    "The prompt is compact: five tools, shortened orders, no policy document. The score is not"
    " comparable with published tau-bench scores.",
)
SHIPPED_CLAIM = (
    "The policy was warmed up on synthetic dialogues, half of them with a typical mistake. A rise"
    " shows that the mistakes were unlearnt on unseen tasks, not that a new skill was found."
)
FULL_CLAIM = ("The prompt is the policy document with all tools of the domain.",)
OFFLINE_CLAIM = {
    "compact": "The customer is simulated offline: it says everything at once, and leaves after the"
    " agent's first statement.",
    "full": "The customer is simulated offline and plays no conditional scenes; scores with it are"
    " for comparing checkpoints, not for comparison with published ones.",
}


class TauOptions(TrainOptions):
    """Options of the tau trainer on this machine."""

    num_rollout: int = Field(default=24, ge=0)
    """Training steps; each samples, scores and trains on fresh rollouts."""
    lr: float = Field(default=3e-4, gt=0)
    """Learning rate of AdamW, constant; 1e-6 is usual for policies of billions of parameters."""
    eps_clip_high: float | None = Field(default=0.28, gt=0)
    """The policy's ratio is held below 1 + eps-clip-high."""
    objective: Objective | None = None
    """Mean of the loss over turns, a rollout's tokens or all tokens (where not given)."""
    env: Literal["retail", "airline"] = "retail"
    """The domain of the tasks."""
    prompt: Literal["compact", "full"] = "compact"
    """What the policy is shown: a short prompt with five tools, or the whole policy document."""
    eval_split: Literal["held-out", "tune", "dev", "test"] = "held-out"
    """Tasks to evaluate on: held-out and tune with the compact prompt, dev and test with full."""
    agent_strategy: Strategy = "tool-calling"
    """How the policy is prompted and its text read. few-shot leaves the demonstrated tasks out."""
    user: UserConfig = UserConfig(strategy="offline")
    """Who plays the customer."""
    include_failing_ground_truth: bool = False
    """Train also on tasks whose annotated write fails (full prompt)."""

    default_objective: ClassVar[Objective] = "global-token-mean"

    @model_validator(mode="after")
    def _check_tasks(self) -> TauOptions:
        if self.prompt == "compact" and self.env != "retail":
            raise ValueError(f"prompt compact shows retail alone; use --prompt full for {self.env}")
        if (self.prompt == "compact") != (self.eval_split in ("held-out", "tune")):
            choices = "held-out or tune" if self.prompt == "compact" else "dev or test"
            raise ValueError(
                f"prompt {self.prompt} evaluates on {choices}, found --eval-split {self.eval_split}"
            )
        if self.user.strategy == "human":
            raise ValueError(
                "user.strategy: nobody could answer for the customers of many episodes at once; "
                "use llm or offline"
            )
        if self.env == "airline":
            raise ValueError("airline has no training tasks; it can be evaluated, not trained on")
        return self


async def make_job(options: TauOptions, policy: LoadedPolicy) -> Job[Task]:
    """Tasks, episode and claim that go with the options."""
    desk = open_desk(options.prompt, options.agent_strategy, options.user, domain=options.env)
    view = desk.services.view
    train_tasks, eval_tasks = _tasks(options)
    train_tasks, left_out = without_demonstrated(train_tasks, options.agent_strategy, options.env)
    profile = tokendelta.Profile.from_tokenizer(policy.tokenizer, tools=view.tools(options.env))
    _check_room(options, profile, view.system(options.env))
    return Job(
        method="tau",
        train_tasks=_by_id(train_tasks),
        eval_tasks=_by_id(eval_tasks),
        run_episode=desk.play,
        profile=profile,
        tool_format="qwen25",
        services={"user": desk.user},
        baselines={"doing nothing": noop_baseline(eval_tasks)},
        claim=_claim(options, desk.user, left_out),
        totals=desk.totals,
        about=f"{options.env} tasks with the {options.prompt} prompt ({options.agent_strategy})",
        split=options.eval_split,
        close=desk.close,
    )


def _claim(options: TauOptions, user: str, left_out: int) -> tuple[str, ...]:
    """What the result shows and what it does not, for these options."""
    offline = options.user.strategy == "offline"
    played = f"The customer is {user}; compare the scores with those of this customer alone."
    shown = f"{left_out} training tasks stand in the prompt as demonstrations and are left out."
    return (
        SPLIT_CLAIM[options.eval_split],
        *(FAMILY_CLAIM if options.prompt == "compact" else FULL_CLAIM),
        OFFLINE_CLAIM[options.prompt] if offline else played,
        *((shown,) if left_out else ()),
        *((SHIPPED_CLAIM,) if options.hf_checkpoint == SHIPPED else ()),
    )


def _check_room(options: TauOptions, profile: tokendelta.Profile, system: str) -> None:
    """Raises ConfigError where the system prompt leaves no room for a turn."""
    session = tokendelta.Session(profile)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": ""}]
    prompt = session.start(messages)
    assert not isinstance(prompt, tokendelta.Overflow)
    needed = len(prompt) + options.rollout_max_response_len
    if needed > options.rollout_max_context_len:
        raise ConfigError(
            f"--rollout-max-context-len {options.rollout_max_context_len}: system prompt and tools"
            f" take {len(prompt)} tokens, one turn {options.rollout_max_response_len}; give at"
            f" least {needed}, and room for the conversation"
        )


def _tasks(options: TauOptions) -> tuple[Sequence[Task], Sequence[Task]]:
    if options.prompt == "compact":
        splits = family_splits()
        return splits.train, splits.held_out if options.eval_split == "held-out" else splits.tune
    tasks = load_tasks(options.env, "train")
    if not options.include_failing_ground_truth:
        tasks = training_tasks(tasks)
    return tasks, load_tasks(options.env, options.eval_split)


def _by_id(tasks: Sequence[Task]) -> Mapping[str, Task]:
    return {task.id: task for task in tasks}


TRAINER = LocalTrainer(
    prog="tau:train",
    description=(
        "Trains a tool-calling agent on tau-bench retail tasks with GRPO, on this machine. Without"
        " options: the shipped policy on its task family, in minutes on a CPU. Exit codes: 0 ok, 2"
        " usage or configuration, 3 the disk is too full, 4 run failed, 130 interrupted."
    ),
    method="tau",
    options=TauOptions,
    make_job=make_job,
    shipped=SHIPPED_POLICY,
    require_tools=lambda options: options.agent_strategy in ("tool-calling", "few-shot"),
    may_change=USER_MAY_CHANGE,
)
