"""Log-probs and entropy at the language-model head, without all logits at once.

    z = h W^T / temperature      log p_t = z_t - logsumexp(z)      H = logsumexp(z) - sum_v p_v z_v

Tokens are taken in chunks. Of a chunk, forward keeps logsumexp and H alone; backward computes its
logits again and multiplies

    dL/dz_v = g_t * (1[v = t] - p_v) - g_H * p_v * (log p_v + H)

into the gradients of h and W. W's is summed over the chunks in float32.

Shapes: N tokens, H hidden, V vocabulary. Logits have the dtype of h and W, as an engine's have;
what is made of them is float32 (float64 for float64).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 26
"""Logits of a chunk where its tokens are not given."""


def head_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    entropy_grad: bool = False,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probs of `targets`, and the entropy of the distributions that they are drawn from.

    Args:
        hidden: [N, H].
        weight: [V, H].
        targets: int64[N].
        temperature: Divides the logits.
        entropy_grad: Whether the entropy carries a gradient.
        chunk_size: Tokens of a chunk; None takes as many as have `CHUNK_ELEMENTS` logits.

    Returns:
        logprobs float32[N], entropy float32[N] in nats.
    """
    rows = chunk_tokens(weight.shape[0], chunk_size)
    # Whole and in float32, autograd's own backward needs no second product with W.
    if len(targets) <= rows and hidden.dtype == torch.float32:
        return _whole(hidden, weight, targets, temperature, entropy_grad)
    chunked: Any = _Chunked.apply
    logprobs, entropy = chunked(hidden, weight, targets, temperature, rows, entropy_grad)
    return logprobs, entropy


def chunk_tokens(vocab: int, chunk_size: int | None) -> int:
    """Tokens of a chunk."""
    return chunk_size or max(1, CHUNK_ELEMENTS // vocab)


def _whole(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    logits = torch.nn.functional.linear(hidden, weight)
    if temperature != 1.0:
        logits = logits / temperature
    distribution = logits.log_softmax(-1)
    logprobs = distribution.gather(-1, targets[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy = -(distribution.exp() * distribution).sum(-1)
    return logprobs, entropy


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        rows: int,
        entropy_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy, normaliser = (hidden.new_empty(len(targets), dtype=wide) for _ in "123")
        for at in range(0, len(targets), rows):
            own = slice(at, at + rows)
            logits = _logits(hidden[own], weight, temperature)
            normaliser[own] = logits.logsumexp(-1)
            logprobs[own] = logits.gather(-1, targets[own, None])[:, 0] - normaliser[own]
            chances = (logits - normaliser[own, None]).exp_()
            entropy[own] = normaliser[own] - chances.mul_(logits).sum(-1)
        ctx.save_for_backward(hidden, weight, targets, normaliser, entropy)
        ctx.temperature, ctx.rows, ctx.entropy_grad = temperature, rows, entropy_grad
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, of_logprobs: Tensor, of_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normaliser, entropy = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_weight: Tensor | None = None
        for at in range(0, len(targets), ctx.rows):
            own = slice(at, at + ctx.rows)
            logs = _logits(hidden[own], weight, ctx.temperature).sub_(normaliser[own, None])
            if ctx.entropy_grad:
                chances = logs.exp()
                logs.add_(entropy[own, None]).mul_(chances).mul_(-of_entropy[own, None])
                gradient = logs.sub_(chances.mul_(of_logprobs[own, None]))
                del chances
            else:
                gradient = logs.exp_().mul_(-of_logprobs[own, None])
            del logs
            gradient.scatter_add_(-1, targets[own, None], of_logprobs[own, None])
            if ctx.temperature != 1.0:
                gradient.div_(ctx.temperature)
            narrow = gradient.to(weight.dtype)
            del gradient
            if of_hidden is not None:
                torch.mm(narrow, weight, out=of_hidden[own])
            if ctx.needs_input_grad[1]:
                term = narrow.T @ hidden[own]
                of_weight = term if of_weight is None else _add(of_weight, term)
        if of_weight is not None:
            of_weight = of_weight.to(weight.dtype)
        return of_hidden, of_weight, None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """[rows, V], a tensor of its own."""
    logits = torch.nn.functional.linear(hidden, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if temperature == 1.0 else logits.div_(temperature)


def _add(total: Tensor, term: Tensor) -> Tensor:
    """The sum in float32 at least, in place once it is."""
    return total.to(torch.promote_types(total.dtype, torch.float32)).add_(term)
