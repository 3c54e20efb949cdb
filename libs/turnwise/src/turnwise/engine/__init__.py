"""What samples tokens: ids in, ids and log-probs out.

`Engine` is the contract that `torch_engine` (in process), `sglang` (HTTP), `served` (a server of
the run) and `scripted` (tests) keep. An engine never sees text: a method builds the prompt with
`tokendelta.Session` and gets back exactly what was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from turnwise.episode import Boundary, BoundaryError

Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample one turn.

    Attributes:
        temperature: Divides the logits; 0 is greedy decoding.
        top_p: Nucleus mass in (0, 1]; 1 switches it off.
        top_k: Keeps the k largest logits; 0 switches it off.
        max_new_tokens: At most this many tokens, the stop token included.
        stop_token_ids: A sampled one of these ends the turn and is returned.
        seed: Makes the draw reproducible whatever else is in the batch; None draws one.
        stop: What follows the first of these strings is not wanted: an engine that sees text may
            end the turn there, with finish `stop` and the string's tokens; another samples on.
        json_schema: JSON Schema that the turn's text has to keep, for an engine that
            `takes_grammar`; log-probs are then of the distribution under it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 1024
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: str | None = None

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, found {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], found {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0, found {self.top_k}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, found {self.max_new_tokens}")


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled turn.

    Attributes:
        ids: int32[n], as sampled, with the stop token where one ended the turn.
        logprobs: float32[n], natural log, of the distribution with temperature, before top-p and
            top-k (what a trainer recomputes); at temperature 0 that of temperature 1.
        finish: `stop`, `length` (max_new_tokens or context) or `abort` (weights were updated).
        weight_version: The version of the weights that sampled the last token.
        cached_tokens: Prompt tokens that were not computed again.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish: Finish
    weight_version: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Totals since the engine was made.

    Attributes:
        prompt_tokens: Tokens of all prompts.
        cached_tokens: Those of them that were not computed.
        sampled_tokens: Tokens sampled.
        busy_s: Seconds that it worked.
    """

    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int
    busy_s: float


class GrammarRefused(BoundaryError):
    """The engine can't make a grammar of a `json_schema`: a fault of who asks for it."""

    def __init__(self, message: str) -> None:
        super().__init__(Boundary.ENGINE, message)


def takes_grammar(engine: Engine) -> bool:
    """Whether `SamplingParams.json_schema` is served."""
    return bool(getattr(engine, "takes_grammar", False))


class Engine(Protocol):
    """Samples turns for many episodes at once.

    `generate` raises `turnwise.episode.BoundaryError` at `Boundary.ENGINE` when the engine
    fails; a prompt that leaves no room for a token gives an empty completion with finish
    `length`.
    """

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        """Samples one turn after `prompt_ids`; turns of one `session_id` share a prefix cache."""
        ...

    async def release(self, session_id: str) -> None:
        """Says that no further turn of this session will come."""
        ...

    async def close(self) -> None:
        """Frees what the engine owns; requests under way end with finish `abort`."""
        ...
