"""The options of MemAgent. Defaults are those of the paper, on every backend.

The run on a laptop names what it has otherwise in `presets/laptop.toml`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from turnwise.method import MethodOptions
from turnwise.objective import Objective

from apps.trainers.memagent.prompts import Order, PromptName

OnOverlong = Literal["refuse", "head", "tail", "centre"]
OnBadMemory = Literal["use", "previous", "penalty", "stop"]
AnswerForm = Literal["boxed", "whole"]


class MemAgentOptions(MethodOptions):
    """The section `[memagent]` of a run, which reaches slime's hooks as `args.turnwise`."""

    prompt: PromptName = "full"
    """How the policy is asked: in full, or in the fewest tokens, which a policy must know."""
    order: Order = "problem-first"
    """What an update's prompt begins with: the problem as in the paper, or the section, whose
    prefix the rollouts of a group share."""
    chunk_tokens: int = Field(default=5_000, ge=1)
    """Tokens of a section."""
    max_memory_tokens: int = Field(default=1_024, ge=1)
    """Most tokens of a memory."""
    max_final_tokens: int = Field(default=1_024, ge=1)
    """Most tokens of the answering turn."""
    max_chunks: int | None = Field(default=8, ge=1)
    """Most sections of a text; any number where not given."""
    on_overlong: OnOverlong = "refuse"
    """A text of more sections: refused, or cut to its head, its tail, or head and tail (centre)."""
    on_bad_memory: OnBadMemory = "use"
    """A memory that was cut, is empty or repeats itself: used as it is, replaced by the one before
    it, used with a penalty, or the end. Nothing is ever replaced by an empty one."""
    bad_memory_penalty: float = Field(default=0.1, ge=0, le=1)
    """Taken off the score for each such memory (on-bad-memory penalty)."""
    memory_price: float = Field(default=0.0, ge=0, le=1)
    """Taken off the score for memories at their limit; in proportion for shorter ones."""
    step_credit: float = Field(default=0.0, ge=0)
    """What a turn earns beside the answer's reward for the share of the gold facts that its memory
    holds and the one before did not; a row's `metadata.facts`, else its answers. Its size matters
    only where rewards are not divided by the group's deviation."""
    callbacks: int = Field(default=0, ge=0)
    """Sections that are read once more after the last one, each found by BM25 with the problem and
    the memory."""
    answer: AnswerForm = "boxed"
    """Where the answer stands in the last turn: in its last box, or it is the whole turn."""
    objective: Objective | None = "global-token-mean"
    """What the loss is averaged over: all tokens as in the paper, a rollout's, or its turns."""
    engine_deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for each turn."""
    tokenizer: Path | None = None
    """Folder of the tokenizer that cuts sections where the policy is an endpoint."""
    eval_per_cell: int = Field(default=8, ge=1)
    """Generated questions of each kind and order to evaluate on, where no data file is named."""

    curve_per_cell: int = Field(default=2, ge=0)
    """Of these as many for each length and order that is played once after training; 0 leaves it
    out."""

    @model_validator(mode="after")
    def _cuts_to_something(self) -> MemAgentOptions:
        if self.on_overlong != "refuse" and self.max_chunks is None:
            raise ValueError(f"on-overlong {self.on_overlong} cuts to max-chunks, which is not set")
        return self
