"""Log-probs and entropy of the trained tokens of a packed row.

A packed row is run through the transformers model as one sequence; attention is causal within each
segment. Two things are left out because they change nothing:
1. the language-model head is computed where a trained token is predicted, nowhere else, and in
   chunks (`turnwise.local.head`);
2. what segments have in common from their start is computed once (`turnwise.local.attention`).

`prepare` makes a model run this way; other calls of the model behave as with `sdpa`.

Shapes: n tokens of a packed row, u <= n tokens that are computed, N trained tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tokendelta
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.local import attention
from turnwise.local.attention import ATTENTION, Kernel
from turnwise.local.head import head_logprobs


def prepare(model: Any, *, recompute: bool = False) -> None:
    """Lets `token_logprobs` run `model`; changes no weight and no other result.

    Args:
        recompute: Keep the input of each layer alone and compute the layer again in the backward
            pass (activation checkpointing).
    """
    model.set_attn_implementation(ATTENTION)
    if recompute:
        # The second is its name before transformers 5.24.
        enable = getattr(model, "activation_checkpointing_enable", None)
        enable = enable or model.gradient_checkpointing_enable
        # A model without dropout draws nothing, so no random state needs to be kept.
        enable({"use_reentrant": False, "preserve_rng_state": False})


def kernel_of(model: Any) -> Kernel:
    """The attention kernel that `token_logprobs` uses for `model`."""
    weight = model.model.embed_tokens.weight
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return attention.packed_kernel(weight.device, weight.dtype, head_dim)


def token_logprobs(
    model: Any,
    batch: tokendelta.MicroBatch,
    *,
    temperature: float = 1.0,
    entropy_grad: bool = False,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probs that the model gives to the trained tokens of a packed row, and its entropy there.

    Args:
        model: A causal language model that `prepare` was called on.
        batch: Its trained tokens are those with loss_mask 1; none may begin a segment.
        temperature: Divides the logits, as it did when the tokens were sampled.
        entropy_grad: Whether the entropy carries a gradient.
        chunk_size: Tokens whose logits are held at once; see `head_logprobs`.

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
    made = attention.plan(batch.ids, batch.cu_seqlens, device, kernel_of(model))
    hidden = base(
        input_ids=_tensor(batch.ids[made.tokens], device)[None],
        position_ids=_tensor(batch.position_ids[made.tokens], device)[None],
        # A mask of four dimensions is passed on as it is; the plan says what is visible.
        attention_mask=torch.zeros(1, 1, 1, 1, device=device),
        use_cache=False,
        packed=made,
    ).last_hidden_state[0]
    return head_logprobs(
        hidden[_tensor(made.place[trained - 1], device)],
        model.lm_head.weight,
        _tensor(batch.ids[trained], device),
        temperature=temperature,
        entropy_grad=entropy_grad,
        chunk_size=chunk_size,
    )


def _tensor(array: NDArray[np.integer[Any]], device: torch.device) -> Tensor:
    return torch.from_numpy(array.astype(np.int64)).to(device)
