"""The options of training on this machine. Names and meaning are slime's where slime has them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from turnwise.config import CommandConfig
from turnwise.engine import SamplingParams

if TYPE_CHECKING:
    from turnwise.local.update import UpdateSettings

SHIPPED = "shipped"
"""The name of the policy that comes with a method."""
MAX_THREADS = 1024
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
    """Learning rate of AdamW, constant."""
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
    engine_rows: int = Field(default=96, ge=1, le=MAX_ROWS)
    """Sequences that the engine decodes at once."""
    threads: int | None = Field(default=None, ge=1, le=MAX_THREADS)
    """Threads for torch; measured where not given."""
    max_logprob_diff: float = Field(default=0.02, gt=0)
    """Stop where a token's log-prob differs more than this between engine and trainer."""
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
        if self.max_tokens_per_gpu < self.rollout_max_context_len:
            raise ValueError(
                f"max-tokens-per-gpu ({self.max_tokens_per_gpu}) must hold one conversation of"
                f" rollout-max-context-len ({self.rollout_max_context_len}) tokens"
            )
        return self

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

    def update_settings(self) -> UpdateSettings:
        """The optimiser's and the loss's part."""
        from turnwise.local.update import UpdateSettings

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
        )
