"""What is run: a preset, what is changed of it, and who is killed when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

When = Literal["rollout", "training", "saving"]
SHORT = ("--num-rollout", "8", "--save-interval", "2", "--eval-interval", "8")
APART = ("--colocate", "false", "--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1")
# Groups under way and episodes asked at once, two batches; an episode that new weights cut goes on
# where it was. slime's correction weighs each token by the engine's log-prob of it.
ASYNC = (
    *("--rollout-function-path", "slime.rollout.fully_async_rollout.generate_rollout_fully_async"),
    *("--sglang-server-concurrency", "16", "--partial-rollout", "--use-tis"),
    # It evaluates nothing; the weights that it leaves are evaluated afterwards.
    *("--num-rollout", "12", "--eval-interval", "100", "--skip-eval-before-train"),
)
# The shape of a published model with random weights: for memory and speed alone.
SHAPED = (
    *("--num-rollout", "3", "--eval-interval", "100", "--skip-eval-before-train"),
    *("--rollout-batch-size", "16", "--n-samples-per-prompt", "8"),
    *("--rollout-max-response-len", "512", "--rollout-max-context-len", "2048"),
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
# slime asks GPUs of their own for each model of the file that `HELPERS` is.
HELPED = (
    *("--agentflow.helpers", "models", "--agentflow.models.base.sglang", "base"),
    *("--agentflow.models.base.max-tokens", "48", "--rollout-num-gpus", "2"),
    *("--num-gpus-per-node", "2", "--num-rollout", "2", "--eval-interval", "100"),
    "--skip-eval-before-train",
    *("--dynamic-sampling-filter-path", "operator.is_not"),
)
# slime looks for ports from 15000 on for each model, before another one listens: two on a node get
# the same unless the file says otherwise.
HELPERS = """sglang:
  - name: planner
    model_path: {policy}
    update_weights: true
    server_groups: [{{worker_type: regular, num_gpus: 1, num_gpus_per_engine: 1}}]
  - name: base
    model_path: {policy}
    update_weights: false
    server_groups:
      - {{worker_type: regular, num_gpus: 1, num_gpus_per_engine: 1, overrides: {{port: {port},
         nccl_port: {nccl_port}, dist_init_addr: "127.0.0.1:{dist_port}"}}}}
"""
TWO = (
    *("--actor-num-gpus-per-node", "2", "--rollout-num-gpus", "2"),
    *("--num-rollout", "6", "--eval-interval", "100", "--skip-eval-before-train"),
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
        helpers: Whether frozen models are served beside the policy.
        preset: Of the method, without its ending.
        warmstart: Options of the command that makes the policy first, for another than the shipped.
        keeps: Whether its weights are written in Hugging Face's form at each save.
    """

    about: str
    method: str = "tau"
    flags: tuple[str, ...] = ()
    gpus: int = 1
    kill: tuple[str, When] | None = None
    shape: str | None = None
    helpers: bool = False
    preset: str = "shipped-policy"
    warmstart: tuple[str, ...] = ()
    keeps: bool = False
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
    "kill-worker": Part(
        "slime's rollout process killed in a rollout",
        flags=SHORT,
        kill=("ray::RolloutManager", "rollout"),
    ),
    "smollm2": Part(
        "SmolLM2-135M-Instruct after a supervised pass over the scripted expert's dialogues",
        preset="smollm2-135m",
        warmstart=(
            *("--hf-checkpoint", "smollm2", "--dialogues", "5000", "--replay-steps", "160"),
            *("--learning-rate", "2e-4", "--workers", "8"),
        ),
    ),
    "agentflow": Part(
        "several segments an episode, turn-mean, sandbox",
        method="agentflow",
        flags=("--num-rollout", "12"),
    ),
    "collected": Part(
        "what the event loop waits for where garbage is looked for among all that is loaded",
        flags=("--num-rollout", "6", "--eval-interval", "6", "--skip-eval-before-train"),
        environment={"GC_FREEZE": "0"},
    ),
    "agentflow-helpers": Part(
        "frozen helpers that slime serves beside the planner, which stands in for them",
        method="agentflow",
        flags=HELPED,
        gpus=2,
        helpers=True,
    ),
    "partial": Part(
        "partial rollouts: versions within an episode",
        flags=(
            *("--partial-rollout", "--over-sampling-batch-size", "16", "--num-rollout", "12"),
            "--use-tis",
        ),
    ),
    "shape-0.6b": Part(
        "a model of real size",
        # Jobs beside it take of the GPU too.
        flags=(
            *(*SHAPED, "--save-interval", "3", "--sglang-mem-fraction-static", "0.6"),
            *("--sglang-max-total-tokens", "300000"),
        ),
        shape="qwen3-0.6B",
    ),
    "apart": Part(
        "actor and engine apart, NCCL",
        flags=(*APART, "--num-rollout", "12", "--save-interval", "12"),
        gpus=2,
        keeps=True,
    ),
    "async": Part(
        "slime's fully asynchronous rollout",
        flags=(*APART, *ASYNC, "--save-interval", "12"),
        gpus=2,
        keeps=True,
    ),
    "two": Part("two engines behind the router", flags=TWO, gpus=2),
    "two-sticky": Part(
        "the same, each episode's turns to one engine",
        flags=(*TWO, "--router-policy", "manual"),
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
        flags=(*SHAPED, *TP2),
        gpus=2,
        shape="qwen3-4B-Instruct-2507",
    ),
    "four-4b": Part(
        "the 4B preset's own shape: two data-parallel ranks of two GPUs, engines of two GPUs",
        flags=(
            *(*SHAPED, *FOUR),
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
        flags=(*FOUR_APART, *WIDE, *ASYNC),
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
