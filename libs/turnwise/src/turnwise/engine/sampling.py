"""Drawing tokens: reproducible whatever else is in the batch.

A turn's draws are uniform numbers that depend on its seed and the length of its prompt alone; the
token is where the cumulative distribution passes the number. Shapes: n rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SEED_MASK = (1 << 64) - 1


def uniforms(seed: int, prompt_length: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for the tokens after a prompt of `prompt_length`.

    Philox (Salmon et al. 2011) with the seed as its key and the prompt length in the upper half
    of its counter, so the turns of one seed never share a draw.
    """
    counter = np.array([0, 0, prompt_length, 0], dtype=np.uint64)
    key = np.array([seed & _SEED_MASK, 0], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key)).random(count)


@torch.inference_mode()
def sample(
    logits: Tensor,
    uniform: Tensor,
    temperature: Tensor,
    limits: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Draws one token a row.

    Args:
        logits: float32[n, V]; overwritten.
        uniform: float64[n] in [0, 1).
        temperature: float32[n]; 0 takes the likeliest token.
        limits: top-k int64[n], 0 for off, and top-p float32[n] in (0, 1], which is applied to what
            top-k leaves; None if no row has one.

    Returns:
        ids int64[n], logprobs float32[n]: with temperature (1 where that is 0), before top-p and
        top-k.
    """
    greedy = temperature == 0
    logits.div_(torch.where(greedy, 1.0, temperature)[:, None])
    logits.sub_(logits.amax(-1, keepdim=True))
    mass = logits.exp()
    log_total = mass.sum(-1).log_()
    if limits is not None:
        mass = _restrict(mass, *limits)
    cumulative = mass.cumsum(-1, dtype=torch.float64)
    bound = (uniform * cumulative[:, -1])[:, None]
    drawn = torch.searchsorted(cumulative, bound, right=True)[:, 0]
    ids = torch.where(greedy, logits.argmax(-1), drawn)
    logprobs = logits.gather(-1, ids[:, None])[:, 0] - log_total
    return ids, logprobs


def _restrict(mass: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Zeroes the mass outside the k likeliest tokens, then outside the nucleus of the rest."""
    ordered, index = mass.sort(stable=True, dim=-1, descending=True)
    rank = torch.arange(mass.shape[-1], device=mass.device)
    ordered = ordered * (rank < torch.where(top_k > 0, top_k, mass.shape[-1])[:, None])
    before = ordered.cumsum(-1) - ordered
    ordered = ordered * (before < top_p[:, None] * ordered.sum(-1, keepdim=True))
    return torch.zeros_like(mass).scatter_(-1, index, ordered)
