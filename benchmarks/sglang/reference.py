"""Log-probs of given tokens by transformers, and how far others are from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ROWS = 32
"""Sequences of one forward pass."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Sampled tokens of one sequence.

    Attributes:
        ids: The whole sequence.
        places: Where in it the sampled tokens are, each at least 1.
        logprobs: What the engine said of each of them.
    """

    ids: Sequence[int]
    places: Sequence[int]
    logprobs: Sequence[float]


@torch.inference_mode()
def score(
    model: Any, sequences: Sequence[Scored], *, temperature: float = 1.0
) -> list[NDArray[np.float32]]:
    """Log-probs of the sampled tokens of each sequence, each float32[places].

    The softmax is computed in float32, whatever the model's dtype.
    """
    found: list[NDArray[np.float32]] = []
    for first in range(0, len(sequences), ROWS):
        batch = sequences[first : first + ROWS]
        width = max(len(one.ids) for one in batch)
        ids = torch.zeros((len(batch), width), dtype=torch.long, device=model.device)
        mask = torch.zeros_like(ids)
        for row, one in enumerate(batch):
            ids[row, : len(one.ids)] = torch.tensor(one.ids, device=model.device)
            mask[row, : len(one.ids)] = 1
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        table = (logits.float() / temperature).log_softmax(-1)
        for row, one in enumerate(batch):
            places = torch.tensor(one.places, dtype=torch.long, device=model.device)
            picked = table[row, places - 1, ids[row, places]]
            found.append(picked.cpu().numpy())
    return found


def difference(
    said: Iterable[Sequence[float] | NDArray[np.float32]], reference: Iterable[NDArray[np.float32]]
) -> dict[str, float]:
    """|said - reference| over all tokens: their number, largest, mean, and 99 % quantile.

    `ratio_mean` is the mean of exp(reference - said), 1 where both describe one distribution.
    """
    left = np.concatenate([np.asarray(one, dtype=np.float64) for one in said])
    right = np.concatenate([one.astype(np.float64) for one in reference])
    apart = np.abs(left - right)
    return {
        "tokens": len(apart),
        "largest": float(apart.max()),
        "mean": float(apart.mean()),
        "q99": float(np.quantile(apart, 0.99)),
        "ratio_mean": float(np.exp(right - left).mean()),
    }


def compare(
    models: dict[str, Any], sequences: Sequence[Scored], *, temperature: float = 1.0
) -> dict[str, dict[str, float]]:
    """`difference` of the sequences' own log-probs to each model's, and of the models' own."""
    said = [one.logprobs for one in sequences]
    scores = {
        name: score(model, sequences, temperature=temperature) for name, model in models.items()
    }
    found = {name: difference(said, scored) for name, scored in scores.items()}
    for one, other in combinations(scores, 2):
        found[f"{other} to {one}"] = difference(scores[other], scores[one])
    return found
