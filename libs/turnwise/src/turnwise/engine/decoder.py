"""The forward pass of the Llama family over a static key-value cache.

Covers Llama, Mistral, Qwen2 and Qwen3 with full attention: RMSNorm, rotary positions,
grouped-query attention, SwiGLU, optional query-key norms, biases and tied embeddings. What it can't
compute it refuses at load, and `verify` compares it with the transformers model that it was loaded
from.

Where the time goes on a CPU is reading keys and values, so
1. projections are fused (query-key-value, gate-up) and residuals are added by the matmul;
2. attention reads the used length only, and what all rows have in common (system prompt, tools)
   once for the whole batch instead of once a row;
3. the last layer of a prefill computes queries and MLP for the last token of each row alone.

Shapes: N tokens laid end to end, n rows that decode, H hidden, Q query heads, K key-value heads,
G = Q / K, D head size, V vocabulary, T context.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from turnwise.config import ConfigError
from turnwise.engine.shape import Shape
from turnwise.engine.spans import Span, Spans

PREFILL_TOKENS = 2048
"""Tokens of one prefill pass; more are computed in several, which bounds the activations."""

SHARED_MIN = 32
"""Tokens that all rows must have in common before attention treats them apart."""


@dataclass(slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens of one row to compute: its place among the rows asked for, ids, first position."""

    index: int
    row: int
    ids: Tensor
    start: int


class Decoder:
    """Weights and key-value cache of `rows` sequences of at most `context` tokens.

    Args:
        model: A transformers model with a language-model head; its weights are copied.
        rows: Sequences that the cache holds.
        context: Tokens per row.

    Raises:
        ConfigError: if the model is of a kind that the decoder doesn't compute, or `context`
            exceeds the positions that it was made for.
    """

    def __init__(self, model: nn.Module, *, rows: int, context: int) -> None:
        config: Any = model.config
        self.shape = shape = Shape.of(config)
        limit = config.max_position_embeddings
        if context > limit:
            raise ConfigError(f"context of {context} tokens; the model has {limit} positions")
        self.rows, self.context = rows, context
        base: Any = model.model
        self.device: torch.device = base.embed_tokens.weight.device
        self.dtype: torch.dtype = base.embed_tokens.weight.dtype
        self._layers: list[_Layer] = []
        with torch.inference_mode():
            angles = torch.outer(
                torch.arange(context, device=self.device, dtype=torch.float32),
                base.rotary_emb.inv_freq.to(self.device, torch.float32),
            )
            angles = torch.cat((angles, angles), dim=-1)[:, None]
            scaling = base.rotary_emb.attention_scaling
            self._cos = (angles.cos() * scaling).to(self.dtype)
            self._sin = (angles.sin() * scaling).to(self.dtype)
            cache = (shape.layers, rows, shape.kv_heads, context, shape.head_dim)
            # Zeros, since a masked score of uninitialised memory could still be NaN.
            self._keys = torch.zeros(cache, device=self.device, dtype=self.dtype)
            self._values = torch.zeros_like(self._keys)
            self._embed, self._norm, self._head = _copies(_outer(model))
            self._layers = [_Layer(*_copies(_fused(layer))) for layer in base.layers]
        self._head_offsets = torch.arange(shape.kv_heads, device=self.device) * context

    @torch.inference_mode()
    def load(self, model: nn.Module) -> None:
        """Copies the weights of `model`, of the same shape, in place."""
        base: Any = model.model
        for own, new in zip((self._embed, self._norm, self._head), _outer(model), strict=True):
            own.copy_(new)
        for layer, source in zip(self._layers, base.layers, strict=True):
            for name, fused in zip(layer.__slots__, _fused(source), strict=True):
                if fused is not None:
                    getattr(layer, name).copy_(fused)

    @torch.inference_mode()
    def copy_prefix(self, source: int, target: int, start: int, stop: int) -> None:
        """Copies positions [start, stop) of row `source` to row `target`."""
        for cache in (self._keys, self._values):
            cache[:, target, :, start:stop] = cache[:, source, :, start:stop]

    @torch.inference_mode()
    def swap_rows(self, one: int, other: int, length: int) -> None:
        """Exchanges the first `length` positions of two rows."""
        for cache in (self._keys, self._values):
            kept = cache[:, one, :, :length].clone()
            cache[:, one, :, :length] = cache[:, other, :, :length]
            cache[:, other, :, :length] = kept

    @torch.inference_mode()
    def prefill(
        self, rows: Sequence[int], tokens: Sequence[Tensor], starts: Sequence[int]
    ) -> Tensor:
        """Computes new tokens of several rows and returns the logits after the last of each.

        Args:
            rows: Distinct row numbers.
            tokens: int64[s] per row, at least one each.
            starts: Positions already in the cache, per row.

        Returns:
            float32[len(rows), V].
        """
        logits = torch.empty(len(rows), self.shape.vocab, device=self.device)
        batch: list[_Part] = []
        room = PREFILL_TOKENS
        for index, (row, ids, start) in enumerate(zip(rows, tokens, starts, strict=True)):
            rest, at = ids, start
            while len(rest):
                part = _Part(index, row, rest[:room], at)
                batch.append(part)
                rest, at, room = rest[room:], at + len(part.ids), room - len(part.ids)
                if room == 0:
                    self._prefill(batch, logits)
                    batch, room = [], PREFILL_TOKENS
        if batch:
            self._prefill(batch, logits)
        return logits

    def _prefill(self, batch: list[_Part], logits: Tensor) -> None:
        device = self.device
        lengths = torch.tensor([len(part.ids) for part in batch])
        ends = lengths.cumsum(0)
        rows_N = torch.repeat_interleave(torch.tensor([part.row for part in batch]), lengths)
        positions_N = torch.cat(
            [torch.arange(part.start, part.start + len(part.ids)) for part in batch]
        ).to(device)
        write = self._write_index(rows_N.to(device), positions_N)
        cos, sin = self._cos[positions_N], self._sin[positions_N]
        x = self._embed[torch.cat([part.ids for part in batch]).to(device)]
        own = [Span(part.row, part.start, len(part.ids)) for part in batch]
        spans = Spans(own, self.context, device)
        for index, layer in enumerate(self._layers):
            q = self._project(layer, x, cos, sin, write, index)
            if index == len(self._layers) - 1:
                last = (ends - 1).to(device)
                x, q = x[last], q[last]
                spans = Spans([span.last() for span in own], self.context, device)
            attended = spans.attend(q, self._keys[index], self._values[index])
            x = self._mlp(layer, self._attention_out(layer, x, attended))
        logits[torch.tensor([part.index for part in batch], device=device)] = self._logits(x)

    @torch.inference_mode()
    def step(self, tokens_n: Tensor, positions_n: Tensor, *, used: int, shared: int) -> Tensor:
        """Computes one token of each of the rows 0..n-1.

        Args:
            tokens_n: int64[n].
            positions_n: int64[n], where they belong.
            used: The largest position plus 1.
            shared: Leading tokens that all n rows have in common.

        Returns:
            float32[n, V].
        """
        n = len(tokens_n)
        if shared < SHARED_MIN or n < 2:
            shared = 0
        write = self._write_index(torch.arange(n, device=self.device), positions_n)
        cos, sin = self._cos[positions_n], self._sin[positions_n]
        beyond = torch.arange(shared, used, device=self.device) > positions_n[:, None]
        bias = torch.zeros(n, 1, 1, used - shared, device=self.device, dtype=self.dtype)
        bias.masked_fill_(beyond[:, None, None], -torch.inf)
        x = self._embed[tokens_n]
        for index, layer in enumerate(self._layers):
            q = self._project(layer, x, cos, sin, write, index)
            x = self._attention_out(layer, x, self._attend(index, q, bias, used, shared))
            x = self._mlp(layer, x)
        return self._logits(x)

    def _attend(self, index: int, q: Tensor, bias: Tensor, used: int, shared: int) -> Tensor:
        """Attention of one query a row; softmax runs over the shared and the own part at once."""
        shape, n = self.shape, len(q)
        k, d = shape.kv_heads, shape.head_dim
        group = shape.heads // k
        own = slice(0, n), slice(None), slice(shared, used)
        keys = self._keys[index][own].flatten(0, 1)
        values = self._values[index][own].flatten(0, 1)
        scale = d**-0.5
        q = q.view(n, k, group, d)
        scores = torch.empty(n, k, group, used, device=q.device, dtype=q.dtype)
        own_scores = torch.baddbmm(
            q.new_empty(()), q.flatten(0, 1), keys.transpose(1, 2), beta=0, alpha=scale
        )
        torch.add(own_scores.view(n, k, group, -1), bias, out=scores[..., shared:])
        if shared:
            common = q.transpose(0, 1).reshape(k, n * group, d)
            prefix = torch.baddbmm(
                q.new_empty(()),
                common,
                self._keys[index, 0, :, :shared].transpose(1, 2),
                beta=0,
                alpha=scale,
            )
            scores[..., :shared] = prefix.view(k, n, group, shared).transpose(0, 1)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
        attended = torch.bmm(weights[..., shared:].flatten(0, 1), values).view(n, k, group, d)
        if shared:
            prefix = weights[..., :shared].transpose(0, 1).reshape(k, n * group, shared)
            common = torch.bmm(prefix, self._values[index, 0, :, :shared])
            attended += common.view(k, n, group, d).transpose(0, 1)
        return attended.view(n, shape.heads, d)

    def _project(
        self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, write: Tensor, index: int
    ) -> Tensor:
        """Queries [N, Q, D]; keys and values go to the cache."""
        shape = self.shape
        h = F.rms_norm(x, (shape.hidden,), layer.attention_norm, shape.eps)
        qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(len(x), -1, shape.head_dim)
        rotated = shape.heads + shape.kv_heads
        qk = qkv[:, :rotated]
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (shape.head_dim,), None, shape.eps) * layer.qk_norm
        half = shape.head_dim // 2
        turned = torch.cat((-qk[..., half:], qk[..., :half]), dim=-1)
        qk = torch.addcmul(qk * cos, turned, sin)
        keys = self._keys[index].view(-1, shape.head_dim)
        values = self._values[index].view(-1, shape.head_dim)
        keys.index_copy_(0, write, qk[:, shape.heads :].reshape(-1, shape.head_dim))
        values.index_copy_(0, write, qkv[:, rotated:].reshape(-1, shape.head_dim))
        return qk[:, : shape.heads]

    def _attention_out(self, layer: _Layer, x: Tensor, attended: Tensor) -> Tensor:
        x = torch.addmm(x, attended.flatten(1), layer.out)
        return x if layer.out_bias is None else x.add_(layer.out_bias)

    def _mlp(self, layer: _Layer, x: Tensor) -> Tensor:
        h = F.rms_norm(x, (self.shape.hidden,), layer.mlp_norm, self.shape.eps)
        gate, up = F.linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        x = torch.addmm(x, F.silu(gate).mul_(up), layer.down)
        return x if layer.down_bias is None else x.add_(layer.down_bias)

    def _logits(self, x: Tensor) -> Tensor:
        x = F.rms_norm(x, (self.shape.hidden,), self._norm, self.shape.eps)
        return F.linear(x, self._head).float()

    def _write_index(self, rows: Tensor, positions: Tensor) -> Tensor:
        """int64[N * K]: where the keys of each token lie in one layer's cache."""
        row_stride = self.shape.kv_heads * self.context
        return ((rows * row_stride + positions)[:, None] + self._head_offsets).flatten()

    @torch.inference_mode()
    def verify(self, model: Any) -> float:
        """Compares a prefill and four steps on random ids with `model`; clears no cache row but 0.

        Returns:
            The largest difference between log-probs.

        Raises:
            ConfigError: if it exceeds what rounding explains (1e-3 in float32, 1 in 16 bit).
        """
        count = min(20, self.context)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(self.shape.vocab, (count,), generator=generator)
        split = count - 4
        expected = model(ids[None].to(self.device)).logits[0].float().log_softmax(-1)
        found = [self.prefill([0], [ids[:split]], [0])[0]]
        for position in range(split, count):
            at = torch.tensor([position], device=self.device)
            found.append(
                self.step(ids[at.cpu()].to(self.device), at, used=position + 1, shared=0)[0]
            )
        differences = torch.stack(found).log_softmax(-1) - expected[split - 1 :]
        largest = float(differences.abs().max())
        allowed = 1e-3 if self.dtype == torch.float32 else 1.0
        if not math.isfinite(largest):
            raise ConfigError("the model's log-probs of random ids are not finite")
        if largest > allowed:
            raise ConfigError(
                f"the embedded engine differs from transformers by {largest:.3g} in log-prob "
                f"(allowed {allowed:g}): the model has a feature that "
                "the engine does not compute"
            )
        return largest


def _copies(tensors: Sequence[Any]) -> list[Any]:
    return [None if tensor is None else tensor.detach().clone() for tensor in tensors]


def _outer(model: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (model.model.embed_tokens.weight, model.model.norm.weight, model.lm_head.weight)


def _fused(layer: Any) -> tuple[Tensor | None, ...]:
    """A layer's weights in the order of `_Layer`; output projections are stored transposed."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    qk_norm = None
    if hasattr(attention, "q_norm"):
        d = attention.head_dim
        heads, kv_heads = (part.weight.shape[0] // d for part in qkv[:2])
        qk_norm = torch.cat(
            (
                attention.q_norm.weight.expand(heads, d),
                attention.k_norm.weight.expand(kv_heads, d),
            )
        )
    gate_up = (mlp.gate_proj, mlp.up_proj)
    return (
        layer.input_layernorm.weight,
        torch.cat([part.weight for part in qkv]),
        _fused_bias(qkv),
        qk_norm,
        attention.o_proj.weight.T,
        attention.o_proj.bias,
        layer.post_attention_layernorm.weight,
        torch.cat([part.weight for part in gate_up]),
        _fused_bias(gate_up),
        mlp.down_proj.weight.T,
        mlp.down_proj.bias,
    )


def _fused_bias(parts: Sequence[Any]) -> Tensor | None:
    return torch.cat([part.bias for part in parts]) if parts[0].bias is not None else None
