"""What is trained or evaluated: an engine, and how its tokens become text and tool calls.

A `Policy` samples tokens and can be trained. An `EndpointPolicy` is a model behind an
OpenAI-compatible endpoint, which can be evaluated alone. A method need not tell them apart:
`turnwise.conversation.Conversation` speaks to both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokendelta
from numpy.typing import NDArray

from turnwise.engine import Engine, SamplingParams
from turnwise.models.client import ChatClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything about a model that an episode loop needs. Shared by all episodes.

    Attributes:
        engine: Samples the turns.
        profile: The audited chat template with its tokenizer.
        max_context_tokens: Prompt and response of an episode together stay within it.
        tool_format: A name of `toolparse.formats()`.
        sampling: How to sample a turn; the loop sets the seed of each turn.
        on_rewrite: What to do where the template rewrites history (see `tokendelta.Session`).
    """

    engine: Engine
    profile: tokendelta.Profile
    max_context_tokens: int
    tool_format: str = "qwen25"
    sampling: SamplingParams = field(default_factory=SamplingParams)
    on_rewrite: Literal["keep", "fork", "error"] = "keep"

    def __post_init__(self) -> None:
        if self.max_context_tokens < 1:
            raise ValueError(
                f"max_context_tokens must be at least 1, found {self.max_context_tokens}"
            )
        if not self.sampling.stop_token_ids:
            stops = tuple(sorted(self.profile.stop_ids))
            object.__setattr__(self, "sampling", replace(self.sampling, stop_token_ids=stops))

    def text(self, ids: Sequence[int] | NDArray[np.int32]) -> str:
        """What was sampled, as text without the stop token; tool-call markers are kept.

        Never raises on ids of the vocabulary; bytes that are no UTF-8 become U+FFFD.
        """
        kept: list[int] = np.asarray(ids, dtype=np.int64).tolist()
        while kept and kept[-1] in self.profile.stop_ids:
            kept.pop()
        tokenizer: Any = self.profile.tokenizer
        return str(
            tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPolicy:
    """A model that is asked by messages.

    Attributes:
        client: Asks; its boundary must be the engine's. Temperature and length are its own.
        top_p: Nucleus mass; 1 switches it off.
    """

    client: ChatClient
    top_p: float = 1.0


AnyPolicy = Policy | EndpointPolicy


def model_vocabulary(folder: Path) -> int | None:
    """Rows of a checkpoint's embedding, by its config.json; None where it does not say.

    A padded vocabulary is larger than its tokenizer's, and a policy may sample what is beyond.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = config.get("text_config", config) if isinstance(config, dict) else None
    size = found.get("vocab_size") if isinstance(found, dict) else None
    return size if isinstance(size, int) and size > 0 else None
