"""What is run: a preset, what is changed of it, and who is killed when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

When = Literal["rollout", "training", "saving"]
SHORT = ("--num-rollout", "8", "--save-interval", "2", "--eval-interval", "8")
APART = ("--colocate", "false", "--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1")
ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
# The shape of a published model with random weights: for memory and speed alone.
SHAPED = (
    *("--num-rollout", "4", "--eval-interval", "4", "--save-interval", "4"),
    *("--rollout-max-response-len", "256", "--rollout-max-context-len", "2048"),
    *("--sglang-max-total-tokens", "400000", "--sglang-context-length", "4096"),
    *("--recompute-granularity", "full", "--recompute-method", "uniform"),
    *("--recompute-num-layers", "1", "--max-tokens-per-gpu", "9216"),
    # Groups of random text have no spread, and slime would sample for ever. Of the arguments and a
    # group this says that they are not the same object: yes, keep it.
    *("--dynamic-sampling-filter-path", "operator.is_not"),
)
TP2 = (
    *("--actor-num-gpus-per-node", "2", "--rollout-num-gpus", "2"),
    *("--tensor-model-parallel-size", "2", "--sequence-parallel"),
)
# Of machines with four GPUs; with eight the same parts run twice as wide.
FOUR = ("--actor-num-gpus-per-node", "4", "--rollout-num-gpus", "4")
FOUR_APART = ("--colocate", "false", "--actor-num-gpus-per-node", "2", "--rollout-num-gpus", "2")
# 128 prompts x 8 rollouts: 1,024 episodes in flight.
WIDE = ("--rollout-batch-size", "128", "--n-samples-per-prompt", "8")


@dataclass(frozen=True)
class Part:
    """One run, or two where the first one is killed.

    Attributes:
        about: What it shows.
        method: Whose command and preset.
        flags: What goes before the preset.
        gpus: Of the machine.
        kill: Which process, by a word of its command line, and when.
        shape: The published model whose shape is trained; None for the shipped policy.
    """

    about: str
    method: str = "tau"
    flags: tuple[str, ...] = ()
    gpus: int = 1
    kill: tuple[str, When] | None = None
    shape: str | None = None
    environment: dict[str, str] = field(default_factory=dict)


PARTS = {
    "tau": Part("the README's run"),
    "kill-engine": Part("SGLang killed in a rollout", flags=SHORT, kill=("sglang::", "rollout")),
    "kill-trainer": Part(
        "the trainer killed in training",
        flags=SHORT,
        kill=("ray::MegatronTrainRayActor", "training"),
    ),
    "kill-driver": Part(
        "the job's driver killed while a checkpoint is written",
        flags=SHORT,
        kill=("train.py", "saving"),
    ),
    "agentflow": Part("several segments an episode, turn-mean, sandbox", method="agentflow"),
    "partial": Part(
        "partial rollouts: versions within an episode",
        flags=("--partial-rollout", "--over-sampling-batch-size", "16", "--num-rollout", "12"),
    ),
    "shape-0.6b": Part("a model of real size", flags=SHAPED, shape="qwen3-0.6B"),
    "apart": Part("actor and engine apart, NCCL", flags=(*APART, "--num-rollout", "12"), gpus=2),
    "async": Part(
        "slime's fully asynchronous rollout",
        flags=(*APART, "--rollout-function-path", ASYNC, "--num-rollout", "12"),
        gpus=2,
    ),
    "tp2-0.6b": Part(
        "tensor and sequence parallel, two engines behind the router",
        flags=(*SHAPED, *TP2),
        gpus=2,
        shape="qwen3-0.6B",
    ),
    "tp2-4b": Part(
        "the same with the 4B preset's shape",
        flags=(*SHAPED, *TP2, "--num-rollout", "2", "--eval-interval", "2"),
        gpus=2,
        shape="qwen3-4B-Instruct-2507",
    ),
    "four-4b": Part(
        "the 4B preset's own shape: two data-parallel ranks of two GPUs, engines of two GPUs",
        flags=(
            *(*SHAPED, *FOUR, "--num-rollout", "3", "--eval-interval", "3"),
            *("--tensor-model-parallel-size", "2", "--sequence-parallel"),
            *("--rollout-num-gpus-per-engine", "2", "--rollout-batch-size", "32"),
            *("--tau.prompt", "full", "--rollout-max-context-len", "16384"),
            *("--sglang-context-length", "16384", "--max-tokens-per-gpu", "16384"),
            *("--sglang-max-total-tokens", "1200000"),
        ),
        gpus=4,
        shape="qwen3-4B-Instruct-2507",
    ),
    "four-tau": Part(
        "the README's run, 1,024 episodes in flight on four engines behind the router",
        flags=(*FOUR, *WIDE),
        gpus=4,
    ),
    "four-async": Part(
        "slime's fully asynchronous rollout, two engines beside two trainers",
        flags=(*FOUR_APART, *WIDE, "--rollout-function-path", ASYNC, "--num-rollout", "12"),
        gpus=4,
    ),
    "four-kill-engine": Part(
        "one of four engines killed in a rollout",
        flags=(*FOUR, *SHORT),
        gpus=4,
        kill=("sglang::", "rollout"),
    ),
    "four-kill-trainer": Part(
        "one of four ranks killed in a step",
        flags=(*FOUR, *SHORT),
        gpus=4,
        kill=("ray::MegatronTrainRayActor", "training"),
    ),
}
