"""The AgentFlow trainer on this machine: which questions, which planner, and what its result means.

Questions are generated (`problems`), helpers are rules (`helpers`), programs run in the real
sandbox, and the judge compares by rule alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar, Literal

import tokendelta
from pydantic import Field
from sandbox import Isolation
from turnwise.config import ConfigError
from turnwise.episode import Episode
from turnwise.local.command import LocalTrainer
from turnwise.local.options import SHIPPED, TrainOptions
from turnwise.local.policy import LoadedPolicy
from turnwise.local.trainer import Job
from turnwise.objective import Objective
from turnwise.policy import Policy
from turnwise.rollout import Rollout

from apps.trainers.agentflow.embedded import Embedded, baselines, embedded
from apps.trainers.agentflow.episode import run_episode
from apps.trainers.agentflow.problems import Problem, make_problems
from apps.trainers.agentflow.services import OnMalformed, Question

SHIPPED_POLICY = Path(__file__).parent / "policy"
PROBLEM_SEED = 20_260_101
"""Of the problems of every side, whatever the run's seed: all runs have the same ones."""
TRAIN_PER_CELL = 24

SPLIT_CLAIM = {
    "held-out": "Generated problems of seven families and three levels; training and held-out"
    " problems share none. No setting was chosen on the held-out ones; an earlier planner, replaced"
    " for its training rewards, was scored on them too.",
    "tune": "Generated problems of seven families and three levels; training and tune problems"
    " share none, but settings were chosen on the tune ones, so the result flatters.",
}
CLAIM = (
    "The helpers are rules: the coder writes exact programs and misreads words, the base generator"
    " understands words and is wrong on large numbers, the verifier takes any number for an answer."
    " None of them sees the truth. The score says nothing about language models as helpers and is"
    " not comparable with published ones.",
)
SHIPPED_CLAIM = (
    "The planner was warmed up on demonstrations whose tools were named by habits that have nothing"
    " to do with what the tools are worth, a fifth of their steps malformed. A rise shows that it"
    " learnt from rewards alone which tool suits which question, and to keep the form."
)


class AgentFlowTrainOptions(TrainOptions):
    """Options of the AgentFlow trainer on this machine."""

    num_rollout: int = Field(default=16, ge=0)
    """Training steps; each samples, scores and trains on fresh rollouts."""
    rollout_max_response_len: int = Field(default=64, ge=1)
    """Most tokens of one sampled turn."""
    rollout_max_context_len: int = Field(default=512, ge=2)
    """Most tokens of one turn of the planner, prompt included."""
    rollout_batch_size: int = Field(default=16, ge=1)
    """Prompts a step."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of AdamW, constant; 1e-6 is usual for policies of billions of parameters."""
    eps_clip_high: float | None = Field(default=0.28, gt=0)
    """The policy's ratio is held below 1 + eps-clip-high."""
    objective: Objective | None = None
    """Mean of the loss over turns (where not given), a rollout's tokens or all tokens."""
    n_samples_per_eval_prompt: int = Field(default=2, ge=1)
    """Trials of each held-out question."""

    prompt: Literal["compact", "full"] = "compact"
    """How the models are asked; the shipped planner knows the compact prompts."""
    max_steps: int = Field(default=3, ge=1)
    """Steps of an episode: each is one tool, run once."""
    on_malformed: OnMalformed = "stop"
    """What a step that can't be read leads to: asked again, a penalty, or the end with score 0."""
    isolation: Isolation = "auto"
    """Walls around the programs: the strongest that hold here, or `none`, which must be typed."""
    eval_split: Literal["held-out", "tune"] = "held-out"
    """Questions to evaluate on; settings were chosen on tune."""
    eval_per_cell: int = Field(default=4, ge=1)
    """Questions of each family and level to evaluate on."""

    default_objective: ClassVar[Objective] = "turn-mean"


async def make_job(options: AgentFlowTrainOptions, policy: LoadedPolicy) -> Job[Problem]:
    """Questions, episode and claim that go with the options.

    Raises:
        ConfigError: the context has no room for a turn.
        PreflightError: no sandbox holds on this machine.
    """
    profile = tokendelta.Profile.from_tokenizer(policy.tokenizer)
    train = make_problems("train", per_cell=TRAIN_PER_CELL, seed=PROBLEM_SEED)
    evaluation = make_problems(
        options.eval_split, per_cell=options.eval_per_cell, seed=PROBLEM_SEED
    )
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(
            embedded(
                prompt=options.prompt,
                max_steps=options.max_steps,
                on_malformed=options.on_malformed,
                isolation=options.isolation,
            )
        )
        _check_room(options, profile, made, (*train, *evaluation))
        scores = await baselines(evaluation, made, policy.tokenizer, profile)
        close = stack.pop_all().aclose

    async def run(rollout: Rollout[Problem], sampler: Policy) -> Episode:
        problem = rollout.task
        return await run_episode(
            Question(problem.id, problem.text, problem.answer),
            sampler,
            made.services,
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
            seed=rollout.seed,
        )

    return Job(
        method="agentflow",
        train_tasks=_by_id(train),
        eval_tasks=_by_id(evaluation),
        run_episode=run,
        profile=profile,
        services={"sandbox": made.tier, "helpers": "rules", "judge": "rule"},
        baselines=scores,
        claim=(
            SPLIT_CLAIM[options.eval_split],
            *CLAIM,
            *((SHIPPED_CLAIM,) if options.hf_checkpoint == SHIPPED else ()),
        ),
        about=f"generated questions with the {options.prompt} prompt",
        split=options.eval_split,
        close=close,
    )


def _check_room(
    options: AgentFlowTrainOptions,
    profile: tokendelta.Profile,
    made: Embedded,
    problems: Sequence[Problem],
) -> None:
    """Raises ConfigError where the first prompt of a question leaves no room for a turn."""
    services = made.services
    longest = max(problems, key=lambda problem: len(problem.text))
    content = services.prompts.analysis(longest.text, services.toolbox, max_steps=options.max_steps)
    prompt = tokendelta.Session(profile).start([{"role": "user", "content": content}])
    assert not isinstance(prompt, tokendelta.Overflow)
    needed = len(prompt) + options.rollout_max_response_len
    if needed > options.rollout_max_context_len:
        raise ConfigError(
            f"--rollout-max-context-len {options.rollout_max_context_len}: the longest question"
            f" takes {len(prompt)} tokens, one turn {options.rollout_max_response_len}; give at"
            f" least {needed}, and room for the steps"
        )


def _by_id(problems: Sequence[Problem]) -> Mapping[str, Problem]:
    return {problem.id: problem for problem in problems}


TRAINER = LocalTrainer(
    prog="agentflow:train",
    description=(
        "Trains the planner of AgentFlow with GRPO, on this machine: when to have a program"
        " written and when not. Without options: the shipped planner on generated questions, in"
        " minutes on a CPU. Exit codes: 0 ok, 2 usage or configuration, 3 no sandbox holds here, 4"
        " run failed, 130 interrupted."
    ),
    method="agentflow",
    options=AgentFlowTrainOptions,
    make_job=make_job,
    shipped=SHIPPED_POLICY,
    require_tools=False,
)
