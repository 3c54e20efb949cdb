"""Log-probs and entropy of the trained tokens of a packed row.

A packed row is run through the transformers model as one sequence; attention is causal within each
segment. Two things are left out because they change nothing:
1. the language-model head is computed where a trained token is predicted, nowhere else;
2. tokens that segments of the row have in common from their start (system prompt, tools, the task
   of a group) are computed once: later segments attend to the first one's keys and values. The
   gradient is the same sum.

`prepare` makes a model run this way; other calls of the model behave as with `sdpa`.

Shapes: n tokens of a packed row, s segments, u <= n tokens that are computed, N trained tokens,
V vocabulary, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tokendelta
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "turnwise_packed"
"""The attention implementation's name in transformers' registry."""

SHARE_MIN = 16
"""Leading tokens two segments must have in common to be computed once."""

HEAD_ELEMENTS = 1 << 26
"""Logits held at once; more are computed in chunks and again in the backward pass."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment's part in attention.

    Attributes:
        begin, end: Its own tokens among the u computed ones.
        keys: int64[length] places of the whole segment among them; None if it is [begin, end).
        mask: bool[end - begin, length], True where visible; None for plain causal attention.
    """

    begin: int
    end: int
    keys: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What of a packed row is computed.

    Attributes:
        tokens: int64[u], places in the packed row of the tokens that are computed.
        place: int64[n], where among them the value of each token of the row is found.
        segments: One per segment of the row.
    """

    tokens: NDArray[np.int64]
    place: NDArray[np.int64]
    segments: tuple[Segment, ...]


def plan(ids: NDArray[np.int32], cu_seqlens: NDArray[np.int32], device: torch.device) -> Plan:
    """Finds what segments have in common.

    Args:
        ids: int32[n].
        cu_seqlens: int32[s + 1].
        device: Where the plan's tensors will be used.
    """
    bounds = cu_seqlens.astype(np.int64).tolist()
    longest = max(end - begin for begin, end in zip(bounds, bounds[1:], strict=False))
    padded = np.full((len(bounds) - 1, longest), -1, dtype=np.int32)
    place = np.empty(len(ids), dtype=np.int64)
    tokens: list[NDArray[np.int64]] = []
    segments: list[Segment] = []
    masks: dict[tuple[int, int], Tensor] = {}
    count = 0
    for index, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        length = end - begin
        padded[index, :length] = ids[begin:end]
        source, common = _longest_common(padded, index, length)
        if source is not None:
            at = bounds[source]
            place[begin : begin + common] = place[at : at + common]
        own = length - common
        place[begin + common : end] = np.arange(count, count + own)
        tokens.append(np.arange(begin + common, end))
        keys = mask = None
        if common:
            keys = torch.from_numpy(place[begin:end].copy()).to(device)
            if (own, length) not in masks:
                visible = torch.ones(own, length, dtype=torch.bool, device=device)
                masks[own, length] = visible.tril_(common)
            mask = masks[own, length]
        segments.append(Segment(count, count + own, keys, mask))
        count += own
    return Plan(np.concatenate(tokens), place, tuple(segments))


def _longest_common(padded: NDArray[np.int32], index: int, length: int) -> tuple[int | None, int]:
    """The earlier segment with the longest common start, its last token excepted."""
    if index == 0 or length < 2:
        return None, 0
    differ = padded[:index, : length - 1] != padded[index, : length - 1]
    first = np.where(differ.any(axis=1), differ.argmax(axis=1), length - 1)
    source = int(first.argmax())
    common = int(first[source])
    return (source, common) if common >= SHARE_MIN else (None, 0)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    segments: tuple[Segment, ...] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature; without `segments` it is `sdpa`.

    Args:
        query: [1, Q, u, D].
        key, value: [1, K, u, D].

    Returns:
        [1, u, Q, D], None.
    """
    if segments is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    outputs = []
    for segment in segments:
        own = slice(segment.begin, segment.end)
        k, v = (
            part[:, :, own] if segment.keys is None else part.index_select(2, segment.keys)
            for part in (key, value)
        )
        outputs.append(
            F.scaled_dot_product_attention(
                query[:, :, own],
                k,
                v,
                attn_mask=segment.mask,
                is_causal=segment.mask is None,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2), None


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def prepare(model: Any) -> None:
    """Lets `token_logprobs` run `model`; changes no weight and no other result."""
    model.set_attn_implementation(ATTENTION)


def token_logprobs(
    model: Any,
    batch: tokendelta.MicroBatch,
    *,
    temperature: float = 1.0,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probs that the model gives to the trained tokens of a packed row, and its entropy there.

    Args:
        model: A causal language model that `prepare` was called on.
        batch: Its trained tokens are those with loss_mask 1; none may begin a segment.
        temperature: Divides the logits, as it did when the tokens were sampled.
        entropy_grad: Whether the entropy carries a gradient.

    Returns:
        logprobs float32[N], entropy float32[N] in nats, in the order of the row.

    Raises:
        ValueError: if a segment's first token is trained: nothing predicts it.
    """
    trained = np.flatnonzero(batch.loss_mask)
    if (batch.position_ids[trained] == 0).any():
        raise ValueError("the first token of a segment is trained, but nothing predicts it")
    base: Any = model.model
    device = base.embed_tokens.weight.device
    made = plan(batch.ids, batch.cu_seqlens, device)
    hidden = base(
        input_ids=_tensor(batch.ids[made.tokens], device)[None],
        position_ids=_tensor(batch.position_ids[made.tokens], device)[None],
        # A mask of four dimensions is passed on as it is; segments say what is visible.
        attention_mask=torch.zeros(1, 1, 1, 1, device=device),
        use_cache=False,
        segments=made.segments,
    ).last_hidden_state[0]
    predicting = hidden[_tensor(made.place[trained - 1], device)]
    targets = _tensor(batch.ids[trained], device)
    rows = max(1, HEAD_ELEMENTS // model.config.vocab_size)
    if len(targets) <= rows:
        return _head(model.lm_head, predicting, targets, temperature, entropy_grad)
    parts = [
        checkpoint(
            _head,
            model.lm_head,
            predicting[at : at + rows],
            targets[at : at + rows],
            temperature,
            entropy_grad,
            use_reentrant=False,
        )
        for at in range(0, len(targets), rows)
    ]
    logprobs, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
    return logprobs, entropy


def _head(
    head: nn.Module, hidden: Tensor, targets: Tensor, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    distribution = logits.log_softmax(-1)
    logprobs = distribution.gather(-1, targets[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy = -(distribution.exp() * distribution).sum(-1)
    return logprobs, entropy


def _tensor(array: NDArray[np.integer[Any]], device: torch.device) -> Tensor:
    return torch.from_numpy(array.astype(np.int64)).to(device)
