"""Attention over a packed row: causal within each segment, a common start computed once.

Tokens that segments of a row have in common from their start (system prompt, tools, the task of a
group) are computed once; later segments attend to the first one's keys and values, so a segment
has fewer queries than keys, and its queries are the last of them. The gradient is the same sum.

Two kernels do it, the same numbers up to rounding:
- `varlen`: one call a layer over all segments, FlashAttention 2 as torch brings it since 2.11
  (`torch.nn.attention.varlen`); needs CUDA, half precision and compute capability 8;
- `sdpa`: one call of `scaled_dot_product_attention` a segment; runs anywhere.

Shapes: n tokens of a packed row, s segments, u <= n tokens that are computed, Q query heads, K
key-value heads, D head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "turnwise_packed"
"""The attention implementation's name in transformers' registry."""

SHARE_MIN = 16
"""Leading tokens two segments must have in common to be computed once."""

FLASH_HEAD_DIM = 256
"""Largest head that FlashAttention 2 takes."""

Kernel = Literal["varlen", "sdpa"]
Attend = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment's part in attention.

    Attributes:
        own, length: How many of the u computed tokens are its own, and how many it has in all.
        mask: bool[own, length], True where visible; None for plain causal attention.
    """

    own: int
    length: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Varlen:
    """All segments for one call of the varlen kernel.

    Attributes:
        keys: int64[n], places of all segments' tokens among the u computed; None if they are all.
        cu_queries, cu_keys: int32[s + 1], bounds of the segments' own and of all their tokens.
        longest_queries, longest_keys: Tokens of the longest.
    """

    keys: Tensor | None
    cu_queries: Tensor
    cu_keys: Tensor
    longest_queries: int
    longest_keys: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What of a packed row is computed.

    Attributes:
        tokens: int64[u], places in the packed row of the tokens that are computed.
        place: int64[n], where among them the value of each token of the row is found.
        keys: As of `Varlen`, for the sdpa kernel.
        segments: One per segment of the row; empty for the varlen kernel.
        varlen: For the varlen kernel, else None.
    """

    tokens: NDArray[np.int64]
    place: NDArray[np.int64]
    keys: Tensor | None
    segments: tuple[Segment, ...]
    varlen: Varlen | None = None


def packed_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> Kernel:
    """The kernel that this machine has for a model on `device`."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return "sdpa"
    if head_dim > FLASH_HEAD_DIM or torch.cuda.get_device_capability(device) < (8, 0):
        return "sdpa"
    return "sdpa" if _flash() is None else "varlen"


def _flash() -> Attend | None:
    """torch's varlen attention, in the form that takes a window; None in an older torch."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    attend: Any = varlen_attn
    return attend if "window_size" in inspect.signature(varlen_attn).parameters else None


def plan(
    ids: NDArray[np.int32],
    cu_seqlens: NDArray[np.int32],
    device: torch.device,
    kernel: Kernel = "sdpa",
) -> Plan:
    """Finds what segments have in common.

    Args:
        ids: int32[n].
        cu_seqlens: int32[s + 1].
        device: Where the plan's tensors will be used.
        kernel: What they will be used by.
    """
    bounds = cu_seqlens.astype(np.int64).tolist()
    longest = max(end - begin for begin, end in zip(bounds, bounds[1:], strict=False))
    padded = np.full((len(bounds) - 1, longest), -1, dtype=np.int32)
    place = np.empty(len(ids), dtype=np.int64)
    tokens: list[NDArray[np.int64]] = []
    segments: list[Segment] = []
    masks: dict[tuple[int, int], Tensor] = {}
    ends = [0]
    for index, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        count = ends[-1]
        length = end - begin
        padded[index, :length] = ids[begin:end]
        source, common = _longest_common(padded, index, length)
        if source is not None:
            at = bounds[source]
            place[begin : begin + common] = place[at : at + common]
        own = length - common
        place[begin + common : end] = np.arange(count, count + own)
        tokens.append(np.arange(begin + common, end))
        ends.append(count + own)
        if kernel == "varlen":
            continue
        if common and (own, length) not in masks:
            visible = torch.ones(own, length, dtype=torch.bool, device=device)
            masks[own, length] = visible.tril_(common)
        segments.append(Segment(own, length, masks[own, length] if common else None))
    keys = None if ends[-1] == len(ids) else torch.from_numpy(place).to(device)
    varlen = None
    if kernel == "varlen":
        varlen = Varlen(
            keys=keys,
            cu_queries=torch.tensor(ends, dtype=torch.int32, device=device),
            cu_keys=torch.from_numpy(cu_seqlens.astype(np.int32)).to(device),
            longest_queries=max(end - begin for begin, end in zip(ends, ends[1:], strict=False)),
            longest_keys=longest,
        )
    own_keys = None if kernel == "varlen" else keys
    return Plan(np.concatenate(tokens), place, own_keys, tuple(segments), varlen)


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
    packed: Plan | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature; without `packed` it is `sdpa`.

    Args:
        query: [1, Q, u, D].
        key, value: [1, K, u, D].

    Returns:
        [1, u, Q, D], None.
    """
    if packed is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    if packed.varlen is not None:
        flash = _flash()
        assert flash is not None, "planned for a kernel that is not here"
        return varlen_attention(query, key, value, packed.varlen, scaling, flash), None
    if packed.keys is not None:
        key, value = (part.index_select(2, packed.keys) for part in (key, value))
    # One split, whose gradient is one concatenation: that of a slice is as long as the row, and a
    # row has many segments.
    lengths = [segment.length for segment in packed.segments]
    parts = zip(
        packed.segments,
        query.split_with_sizes([segment.own for segment in packed.segments], 2),
        key.split_with_sizes(lengths, 2),
        value.split_with_sizes(lengths, 2),
        strict=True,
    )
    outputs = [
        F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=segment.mask,
            is_causal=segment.mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        for segment, q, k, v in parts
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, bounds: Varlen, scaling: float | None, attend: Attend
) -> Tensor:
    """All segments in one call.

    Args:
        query: [1, Q, u, D].
        key, value: [1, K, u, D].
        attend: `torch.nn.attention.varlen.varlen_attn`, whose causal window is aligned to the last
            query and the last key of each segment.

    Returns:
        [1, u, Q, D].
    """
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    if bounds.keys is not None:
        gather: Any = _Gather.apply
        k, v = (gather(part, bounds.keys) for part in (k, v))
    more: dict[str, Any] = {}
    # FlashAttention groups heads by itself; later versions of torch want to be told.
    if "enable_gqa" in inspect.signature(attend).parameters:
        more["enable_gqa"] = q.shape[1] != k.shape[1]
    out = attend(
        q,
        k,
        v,
        bounds.cu_queries,
        bounds.cu_keys,
        bounds.longest_queries,
        bounds.longest_keys,
        scale=scaling,
        window_size=(-1, 0),
        **more,
    )
    return out[None]


class _Gather(torch.autograd.Function):
    """`index_select` along the first dimension whose gradient is summed in float32.

    A common start collects one term a segment, too many for the eight bits of bfloat16.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = values.shape[0]
        return values.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        wide = torch.promote_types(gradient.dtype, torch.float32)
        total = gradient.new_zeros(ctx.count, *gradient.shape[1:], dtype=wide)
        return total.index_add_(0, places, gradient.to(wide)).to(gradient.dtype), None


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
