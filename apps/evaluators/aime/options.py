"""What the evaluator takes."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, model_validator
from turnwise.config import CommandConfig
from turnwise.models.config import check_url

PLAIN = "plain"


class EvalOptions(CommandConfig):
    """Options of the evaluator of problems with one right answer."""

    data: tuple[str, ...] = ("sample",)
    """Data sets: `sample`, or files of JSON lines as PATH or NAME=PATH."""
    input_key: str = "prompt"
    """The question's name in a row."""
    label_key: str = "label"
    """The right answer's name in a row."""

    method: str = PLAIN
    """plain (one question, one answer), agentflow, or a method's package.module:function."""
    method_config: Path | None = None
    """TOML file with the method's own options, such as its frozen models."""
    hf_checkpoint: str | None = None
    """The policy: a folder with weights and tokenizer, or `smollm2`."""
    sglang_url: str | None = None
    """SGLang server that samples in place of the embedded engine; only the tokenizer is loaded."""
    base_url: str | None = None
    """Or an endpoint with OpenAI's chat completions, up to and including /v1; for plain alone."""
    model: str | None = None
    """The model's name at the endpoint."""
    api_key_env: str | None = None
    """The environment variable with the endpoint's key, if it needs one."""
    read_price: float = Field(default=0.0, ge=0)
    """US dollars per million tokens that the policy reads."""
    write_price: float = Field(default=0.0, ge=0)
    """US dollars per million tokens that the policy writes."""

    n_samples_per_eval_prompt: int = Field(default=4, ge=1)
    """Attempts at each problem, the k of avg@k."""
    temperature: float = Field(default=0.7, ge=0)
    """Temperature of the policy, whatever the method; 0 is greedy."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Nucleus mass of the policy, whatever the method."""
    max_response_len: int = Field(default=4096, ge=1)
    """Most tokens of one sampled turn."""
    max_context_len: int | None = Field(default=None, ge=2)
    """Most tokens of a prompt and its turn; the policy's positions where not given."""

    run_dir: Path | None = None
    """Folder of the results; runs/eval-aime-TIME where not given."""
    resume: bool = False
    """Go on with the evaluation in --run-dir; its lost attempts are made again."""
    seed: int = Field(default=1234, ge=0)
    """Fixes what is sampled, and the bootstrap."""
    concurrency: int = Field(default=64, ge=1)
    """Most attempts in flight."""
    engine_rows: int = Field(default=64, ge=1)
    """Sequences that the embedded engine decodes at once."""
    threads: int | None = Field(default=None, ge=1)
    """Threads for torch; measured where not given."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    """Device of the policy: cpu or cuda."""
    dry_run: bool = False
    """Print the resolved configuration and exit."""

    compare: tuple[Path, Path] | None = None
    """Instead of an evaluation: compare the second run with the first, problem by problem."""
    rescore: tuple[Path, ...] = ()
    """Instead of an evaluation: grade saved outputs again, of run folders or of JSON files."""

    @model_validator(mode="after")
    def _check_together(self) -> EvalOptions:
        policy = [self.hf_checkpoint, self.base_url, self.sglang_url]
        if self.compare is not None or self.rescore:
            if self.compare is not None and self.rescore:
                raise ValueError("--compare and --rescore are two commands; give one")
            if any(policy) or self.resume:
                raise ValueError("--compare and --rescore ask no model and resume nothing")
            return self
        if (self.hf_checkpoint is None) == (self.base_url is None):
            raise ValueError("name one policy: --hf-checkpoint or --base-url")
        if self.sglang_url is not None and self.hf_checkpoint is None:
            raise ValueError("--sglang-url needs --hf-checkpoint, whose tokenizer it uses")
        self._check_endpoint()
        if self.method == PLAIN and self.method_config is not None:
            raise ValueError("--method-config is for a method; plain has no options of its own")
        if self.resume and self.run_dir is None:
            raise ValueError("resume needs run-dir, the folder of the evaluation to go on with")
        if not self.data:
            raise ValueError("data: name at least one data set")
        return self

    def _check_endpoint(self) -> None:
        if self.sglang_url is not None:
            check_url(self.sglang_url)
        if self.api_key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            raise ValueError("api-key-env: must be the name of a variable, not the key itself")
        if self.base_url is None:
            return
        check_url(self.base_url)
        if self.model is None:
            raise ValueError("--base-url needs --model")
        if self.max_context_len is not None:
            raise ValueError("max-context-len is for --hf-checkpoint; no endpoint is sent it")
        if self.method != PLAIN:
            raise ValueError(
                f"--method {self.method} samples token ids: give --hf-checkpoint, and --sglang-url"
                " for a server, in place of --base-url"
            )

    @property
    def policy_name(self) -> str:
        """The policy as the report names it."""
        return self.model or Path(self.hf_checkpoint or "").name or str(self.hf_checkpoint)
