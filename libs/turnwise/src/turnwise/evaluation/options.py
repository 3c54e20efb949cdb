"""What every evaluator takes; a benchmark's own options are a subclass of `EvalOptions`."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, model_validator

from turnwise.config import CommandConfig
from turnwise.models.config import check_url

MAX_TRIALS = 10_000

MAY_CHANGE = frozenset(
    {
        "config", "resume", "run_dir", "concurrency", "engine_rows", "threads", "device", "dry_run",
        "api_key_env", "base_url", "sglang_url", "patience_s", "read_price", "write_price",
        "method_config", "compare_with",
    }
)  # fmt: skip
"""Options that may differ when an evaluation goes on: where it runs, not what it asks."""


class SharedOptions(CommandConfig):
    """Options of every evaluator; the method has a section of its own."""

    method: str = ""
    """Who plays: a name of apps/trainers, or the import path package.module:Class of your own."""
    method_config: Path | None = None
    """TOML file with the method's options alone; --config and the command line go before it."""
    hf_checkpoint: str | None = None
    """The policy: a folder with weights and tokenizer, `shipped` (the method's) or `smollm2`."""
    sglang_url: str | None = None
    """SGLang server that samples in place of the embedded engine; only the tokenizer is loaded."""
    base_url: str | None = None
    """Or an endpoint with OpenAI's chat completions, up to and including /v1."""
    model: str | None = None
    """The model's name at the endpoint."""
    api_key_env: str | None = None
    """The environment variable with the endpoint's key, if it needs one."""
    patience_s: float = Field(default=30.0, ge=0)
    """Seconds that nobody may listen at the endpoint, after which it is given up."""
    read_price: float = Field(default=0.0, ge=0)
    """US dollars per million tokens that the policy reads."""
    write_price: float = Field(default=0.0, ge=0)
    """US dollars per million tokens that the policy writes."""

    temperature: float = Field(default=1.0, ge=0)
    """Temperature of the policy, whatever the method; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus mass of the policy, whatever the method."""
    max_response_len: int = Field(default=512, ge=1)
    """Most tokens of one sampled turn."""
    max_context_len: int | None = Field(default=None, ge=2)
    """Most tokens of a conversation, prompt included; the policy's positions where not given."""

    compare_with: Path | None = None
    """The run folder of another evaluation of these tasks, to compare the scores with."""
    compare: tuple[Path, Path] | None = None
    """Instead of an evaluation: compare the second run with the first, task by task."""
    rescore: tuple[Path, ...] = ()
    """Instead of an evaluation: grade saved outputs again, of run folders or of JSON files."""
    run_dir: Path | None = None
    """Folder of the results; runs/eval-NAME-TIME where not given."""
    resume: bool = False
    """Go on with the evaluation in --run-dir; its lost trials are played again."""
    seed: int = Field(default=1234, ge=0)
    """Fixes what is sampled, and the bootstrap."""
    concurrency: int = Field(default=256, ge=1)
    """Most episodes in flight."""
    engine_rows: int = Field(default=64, ge=1)
    """Sequences that the embedded engine decodes at once."""
    threads: int | None = Field(default=None, ge=1)
    """Threads for torch; measured where not given."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d{1,3})?)$")
    """Device of the policy: cpu, cuda or cuda:N."""
    dry_run: bool = False
    """Print the resolved configuration and exit."""

    @property
    def k(self) -> int:
        """Trials of each task."""
        raise NotImplementedError

    @property
    def split(self) -> str:
        """The name of the tasks among the method's own; "" where a file names them."""
        return ""

    @property
    def policy_name(self) -> str:
        """The policy as the report names it."""
        return self.model or Path(self.hf_checkpoint or "").name or str(self.hf_checkpoint)

    @property
    def plays(self) -> bool:
        """Whether a policy is asked: there are two commands that only read."""
        return self.compare is None and not self.rescore

    @model_validator(mode="after")
    def _names_one_policy(self) -> SharedOptions:
        policy = [self.hf_checkpoint, self.base_url, self.sglang_url]
        if not self.plays:
            if self.compare is not None and self.rescore:
                raise ValueError("--compare and --rescore are two commands; give one")
            if any(policy) or self.resume:
                raise ValueError("--compare and --rescore ask no model and resume nothing")
            return self
        if (self.hf_checkpoint is None) == (self.base_url is None):
            raise ValueError("name one policy: --hf-checkpoint or --base-url")
        if self.sglang_url is not None and self.hf_checkpoint is None:
            raise ValueError("--sglang-url needs --hf-checkpoint, whose tokenizer it uses")
        for url in (self.base_url, self.sglang_url):
            if url is not None:
                check_url(url)
        if self.base_url is not None and self.model is None:
            raise ValueError("--base-url needs --model")
        if self.base_url is not None and self.max_context_len is not None:
            raise ValueError("max-context-len is for --hf-checkpoint; no endpoint is sent it")
        if self.resume and self.run_dir is None:
            raise ValueError("resume needs run-dir, the folder of the evaluation to go on with")
        return self

    # On the whole, since the error of the single field shows what was given, which may be a secret.
    @model_validator(mode="after")
    def _hides_keys(self) -> SharedOptions:
        if self.api_key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            raise ValueError("api-key-env: must be the name of a variable, not the key itself")
        return self


class EvalOptions(SharedOptions):
    """Options of evaluating a method on a file, or on tasks of its own."""

    prompt_data: str | None = None
    """Rows to evaluate on: .jsonl or .parquet, or FILE@[start:end]; the method's own tasks where
    not given."""
    input_key: str = "input"
    """Key of a row's prompt."""
    label_key: str | None = None
    """Key of a row's label."""
    metadata_key: str = "metadata"
    """Key of a row's metadata."""
    task_split: str = "held-out"
    """Of the method's own tasks, those to evaluate on."""
    trials: int = Field(default=4, ge=1, le=MAX_TRIALS)
    """Trials of each task."""

    @property
    def k(self) -> int:
        """See `SharedOptions`."""
        return self.trials

    @property
    def split(self) -> str:
        """See `SharedOptions`."""
        return "" if self.prompt_data is not None else self.task_split
