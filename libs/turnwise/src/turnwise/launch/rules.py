"""What slime checks after it has started, or does not check at all, found from the options alone.

Each rule says what was asked, what is there and what to change. The figures are those of slime's
`slime_validate_args` and Megatron's `validate_args` at the commit of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from turnwise.config import ConfigError
from turnwise.rows.files import split_slice

Options = Mapping[str, Sequence[str]]
MLA_SWITCH = "--multi-latent-attention"


def whole(options: Options, name: str, default: int) -> int:
    """A whole number among the options, or what slime takes without it."""
    values = options.get(name)
    return int(values[0]) if values else default


def number(options: Options, name: str, default: float) -> float:
    """A number among the options, or what slime takes without it."""
    values = options.get(name)
    return float(values[0]) if values else default


def check_rules(options: Options) -> None:
    """Holds options, as `check_arguments` gives them, against each other.

    Raises:
        ConfigError: with both numbers and what to change.
    """
    for rule in RULES:
        rule(options)


def batches_divide(options: Options) -> None:
    """slime trains on rollouts // global-batch-size steps and drops the remainder."""
    prompts = whole(options, "--rollout-batch-size", 0)
    samples = whole(options, "--n-samples-per-prompt", 1)
    if not prompts:
        raise ConfigError("rollout-batch-size: is needed; give the prompts of one rollout")
    batch = whole(options, "--global-batch-size", 0)
    steps = whole(options, "--num-steps-per-rollout", 0)
    total = prompts * samples
    made = f"rollout-batch-size {prompts} x n-samples-per-prompt {samples} = {total}"
    if steps and batch and batch != total // steps:
        raise ConfigError(
            f"global-batch-size: {batch}, but {made} over num-steps-per-rollout {steps} "
            f"gives {total // steps}; leave one of them out"
        )
    if batch and total % batch:
        raise ConfigError(
            f"global-batch-size: {batch} does not divide {made}; slime would drop "
            f"{total % batch} rollouts of each step"
        )
    over = whole(options, "--over-sampling-batch-size", prompts)
    if over < prompts:
        raise ConfigError(f"over-sampling-batch-size: {over} is below rollout-batch-size {prompts}")


def length_of_run(options: Options) -> None:
    if "--num-rollout" not in options and "--num-epoch" not in options:
        raise ConfigError("num-rollout: is needed (or num-epoch); it is the length of the run")


def policy_and_rows_are_named(options: Options) -> None:
    """slime's parser takes a line without them, and its job then dies minutes later."""
    for flag, what in (
        ("hf-checkpoint", "the Hugging Face folder of the policy"),
        ("prompt-data", "the rows to train on"),
    ):
        if f"--{flag}" not in options:
            raise ConfigError(f"{flag}: is needed; it is {what}")


def rows_are_of_a_kind_that_slime_reads(options: Options) -> None:
    """Text with tabs is read by everything else here."""
    files = [*options.get("--prompt-data", []), *options.get("--eval-prompt-data", [])[1::2]]
    for file in files:
        if split_slice(file)[0].suffix.lower() == ".tsv":
            raise ConfigError(f"{file}: slime reads .jsonl and .parquet; write it as one of them")


def sampling_is_a_policy(options: Options) -> None:
    temperature = number(options, "--rollout-temperature", 1.0)
    if temperature <= 0:
        raise ConfigError(
            f"rollout-temperature: {temperature:g} is no policy to train; it must be above 0"
        )


def gpus_divide(options: Options) -> None:
    nodes = whole(options, "--actor-num-nodes", 1)
    per_node = whole(options, "--actor-num-gpus-per-node", 8)
    parts = {
        name: whole(options, f"--{name}", 1)
        for name in (
            "tensor-model-parallel-size",
            "pipeline-model-parallel-size",
            "context-parallel-size",
        )
    }
    product = 1
    for part in parts.values():
        product *= part
    if (nodes * per_node) % product:
        asked = " x ".join(f"{name} {part}" for name, part in parts.items() if part > 1)
        raise ConfigError(
            f"{asked} does not divide the {nodes * per_node} GPUs of actor-num-nodes {nodes} x "
            f"actor-num-gpus-per-node {per_node}"
        )
    tensor = parts["tensor-model-parallel-size"]
    for name in ("num-attention-heads", "num-query-groups"):
        size = whole(options, f"--{name}", 0)
        if size and size % tensor:
            raise ConfigError(
                f"tensor-model-parallel-size: {tensor} does not divide the model's {name} {size}"
            )


def engines_divide(options: Options) -> None:
    gpus = whole(options, "--rollout-num-gpus", 0)
    engine = whole(options, "--rollout-num-gpus-per-engine", 1)
    if gpus and gpus % engine:
        raise ConfigError(
            f"rollout-num-gpus: {gpus} is no multiple of rollout-num-gpus-per-engine {engine}"
        )
    colocated = "--colocate" in options
    external = "--rollout-external-engine-addrs" in options
    if not gpus and not colocated and not external and "--debug-train-only" not in options:
        raise ConfigError("rollout-num-gpus: is needed unless colocate is true")
    if external and "--sglang-config" in options:
        raise ConfigError(
            "rollout-external-engine-addrs and sglang-config exclude each other: either the "
            "engines are there already, or slime starts them"
        )


def evaluation_has_data(options: Options) -> None:
    pairs = options.get("--eval-prompt-data", ())
    if len(pairs) % 2:
        raise ConfigError(
            f"eval-prompt-data: takes pairs of a name and a file, found {len(pairs)} values"
        )
    if "--eval-interval" in options and not pairs and "--eval-config" not in options:
        raise ConfigError("eval-interval: needs eval-prompt-data (or eval-config)")


def nothing_is_evaluated_beside_a_rollout(options: Options) -> None:
    """slime's fully asynchronous rollout raises where it is to evaluate. Under another
    `eval-function-path` it shares a semaphore with the evaluation, which another event loop runs:
    whoever waits for it second fails, and a rollout then never has its groups."""
    named = options.get("--rollout-function-path", ())
    if not any("fully_async" in value for value in named) or "--eval-interval" not in options:
        return
    interval = whole(options, "--eval-interval", 0)
    first = "--skip-eval-before-train" not in options
    if not first and interval > whole(options, "--num-rollout", interval):
        return
    raise ConfigError(
        f"eval-interval: {interval}, but slime's fully asynchronous rollout can't be evaluated"
        " while it goes on; leave eval-interval out and evaluate what save-hf writes"
    )


def checkpoints_have_a_place(options: Options) -> None:
    if "--save-interval" in options and "--save" not in options:
        raise ConfigError("save-interval: needs save, the folder to write checkpoints to")
    kl = number(options, "--kl-coef", 0.0)
    kl_loss = number(options, "--kl-loss-coef", 0.0)
    if kl and kl_loss:
        raise ConfigError(f"kl-coef {kl:g} and kl-loss-coef {kl_loss:g}: only one may be above 0")
    if (kl or "--use-kl-loss" in options) and "--ref-load" not in options:
        raise ConfigError("ref-load: is needed for the KL to a reference model")


def batch_has_a_limit(options: Options) -> None:
    if "--use-dynamic-batch-size" in options and "--max-tokens-per-gpu" not in options:
        raise ConfigError("max-tokens-per-gpu: is needed with use-dynamic-batch-size")


def estimator_fits(options: Options) -> None:
    estimator = options.get("--advantage-estimator", ["grpo"])[0]
    if estimator.startswith("reinforce_plus_plus") and "--normalize-advantages" not in options:
        raise ConfigError(f"advantage-estimator: {estimator} needs normalize-advantages = true")
    if "--use-rollout-logprobs" in options and "--use-tis" in options:
        raise ConfigError("use-rollout-logprobs and use-tis exclude each other")


def no_secrets(options: Options) -> None:
    """A job's command line is shown by Ray's dashboard, by `ps` and in our own files."""
    for name in options:
        if name.endswith(("wandb-key", "api-key", "api-keys")):
            raise ConfigError(
                f"{name.removeprefix('--')}: everybody who sees the job would see the key; set it "
                "in the environment of the nodes (WANDB_API_KEY for W&B)"
            )


def conversations_have_a_limit(options: Options) -> None:
    """The hooks stop an episode at this length; slime itself has no default for it."""
    names = ("--rollout-max-context-len", "--sglang-context-length", "--max-position-embeddings")
    if not any(name in options for name in names):
        raise ConfigError(
            "rollout-max-context-len: is needed, the tokens of a conversation with its prompt"
        )


def attention_fits(options: Options) -> None:
    """Megatron's flash attention has no multi-head latent attention."""
    backend = options.get("--attention-backend", ["auto"])[0]
    if MLA_SWITCH in options and backend == "flash":
        raise ConfigError(
            "attention-backend: flash does not run models with multi-latent-attention; leave it out"
        )


RULES: tuple[Callable[[Options], None], ...] = (
    batches_divide,
    length_of_run,
    policy_and_rows_are_named,
    rows_are_of_a_kind_that_slime_reads,
    sampling_is_a_policy,
    gpus_divide,
    engines_divide,
    evaluation_has_data,
    nothing_is_evaluated_beside_a_rollout,
    checkpoints_have_a_place,
    batch_has_a_limit,
    estimator_fits,
    conversations_have_a_limit,
    attention_fits,
    no_secrets,
)
