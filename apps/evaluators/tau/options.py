"""What the evaluator takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, model_validator
from taubench import SPLITS
from taubench.strategies import Strategy
from taubench.users import UserConfig
from turnwise.config import CommandConfig
from turnwise.models.config import check_url

FAMILY = ("held-out", "tune")


class EvalOptions(CommandConfig):
    """Options of the tau evaluator."""

    hf_checkpoint: str | None = None
    """The policy: a folder with weights and tokenizer, or `smollm2`."""
    base_url: str | None = None
    """Or an endpoint with OpenAI's chat completions, up to and including /v1."""
    model: str | None = None
    """The model's name at the endpoint."""
    api_key_env: str | None = None
    """The environment variable with the endpoint's key, if it needs one."""

    env: Literal["retail", "airline"] = "retail"
    """The domain of the tasks."""
    task_split: Literal["train", "dev", "test", "held-out", "tune"] = "test"
    """Upstream's splits, or the held-out part of the main job's task family."""
    prompt: Literal["compact", "full"] | None = None
    """What the policy is shown; compact for held-out and tune where not given, otherwise full."""
    trials: int = Field(default=4, ge=1)
    """Trials of each task; pass^1 to pass^trials are reported."""
    temperature: float = Field(default=1.0, ge=0)
    """Temperature of the policy; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus mass."""
    max_response_len: int = Field(default=512, ge=1)
    """Most tokens of one sampled turn."""
    max_context_len: int | None = Field(default=None, ge=2)
    """Most tokens of an episode, prompt included; the policy's positions where not given."""
    agent_strategy: Strategy = "tool-calling"
    """How the policy is prompted and its text read."""
    user: UserConfig = UserConfig(strategy="offline")
    """Who plays the customer; human needs --concurrency 1."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most sampled turns of an episode; where not given 8 with the compact prompt, otherwise 30."""

    compare_with: Path | None = None
    """The run folder of another evaluation of these tasks, to compare the scores with."""
    run_dir: Path | None = None
    """Folder of the results; runs/eval-tau-TIME where not given."""
    resume: bool = False
    """Go on with the evaluation in --run-dir."""
    seed: int = Field(default=1234, ge=0)
    """Fixes what is sampled."""
    concurrency: int = Field(default=256, ge=1)
    """Most episodes in flight."""
    engine_rows: int = Field(default=64, ge=1)
    """Sequences that the embedded engine decodes at once."""
    threads: int | None = Field(default=None, ge=1)
    """Threads for torch; measured where not given."""
    device: str = "cpu"
    """Device of the policy: cpu or cuda."""
    dry_run: bool = False
    """Print the resolved configuration and exit."""

    @model_validator(mode="after")
    def _check_together(self) -> EvalOptions:
        if (self.hf_checkpoint is None) == (self.base_url is None):
            raise ValueError("name one policy: --hf-checkpoint or --base-url")
        if self.base_url is not None and self.model is None:
            raise ValueError("--base-url needs --model")
        if self.base_url is not None:
            check_url(self.base_url)
            for name in ("top_p", "max_context_len"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    flag = name.replace("_", "-")
                    raise ValueError(f"{flag} is for --hf-checkpoint; no endpoint is sent it")
        if self.api_key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            raise ValueError("api-key-env: must be the name of a variable, not the key itself")
        if self.task_split in FAMILY:
            if self.env != "retail":
                raise ValueError(f"task-split {self.task_split} is of retail, found {self.env}")
        elif self.task_split not in SPLITS[self.env]:
            known = ", ".join(SPLITS[self.env])
            raise ValueError(f"{self.env} has no split {self.task_split}; there are {known}")
        if self.user.strategy == "human" and self.concurrency != 1:
            raise ValueError("user.strategy human needs concurrency 1: one person, one talk")
        if self.resume and self.run_dir is None:
            raise ValueError("resume needs run-dir, the folder of the evaluation to go on with")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError("device cuda: this torch finds no GPU")
        return self

    @property
    def view(self) -> str:
        """The prompt that is used."""
        return self.prompt or ("compact" if self.task_split in FAMILY else "full")

    @property
    def policy_name(self) -> str:
        """The policy as the report names it."""
        return self.model or Path(self.hf_checkpoint or "").name or str(self.hf_checkpoint)
