"""`Sample`: the fields that slime's rollout and training code read, and how turns are appended."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

_TOP_P = (
    ("top_p_token_ids", "top_p_token_offsets"),
    ("top_p_kept_token_ids", "top_p_kept_token_offsets"),
)


def decode_int32(value: Any) -> list[int]:
    """base64 text, bytes, or a sequence of integers."""
    if isinstance(value, str):
        value = base64.b64decode(value)
    if isinstance(value, (bytes, bytearray)):
        return list(struct.unpack(f"<{len(value) // 4}i", value))
    return [int(number) for number in value]


@dataclass
class Sample:
    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: list[int] | None = None
    rollout_top_p_token_offsets: list[int] | None = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0

    @dataclass
    class SpecInfo:
        spec_accept_token_num: int = 0
        spec_draft_token_num: int = 0
        spec_verify_ct: int = 0
        completion_token_num: int = 0

    spec_info: SpecInfo = field(default_factory=SpecInfo)

    @dataclass
    class PrefixCacheInfo:
        cached_tokens: int = 0
        total_prompt_tokens: int = 0

    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)

    def get_reward_value(self, args: Any) -> Any:
        return self.reward[args.reward_key] if args.reward_key else self.reward

    @property
    def effective_response_length(self) -> int:
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    def append_response_tokens(
        self,
        args: Any = None,
        *,
        tokens: Any = None,
        log_probs: Any = None,
        trainable: bool = True,
        meta_info: dict[str, Any] | None = None,
        text: str | None = None,
    ) -> None:
        """Appends tokens of one origin. Raises ValueError where masks, log-probs, top-p spans or
        routed experts would not line up with them."""
        ids = [int(token) for token in tokens or ()]
        scores = None if log_probs is None else [float(value) for value in log_probs]
        if scores is not None and len(scores) != len(ids):
            raise ValueError(f"{len(scores)} log-probs for {len(ids)} tokens")
        if ids and trainable and scores is None:
            raise ValueError("sampled tokens need log-probs")
        if ids and not trainable:
            if scores is not None:
                raise ValueError("tokens that were not sampled have no log-probs")
            scores = [0.0] * len(ids)
        before = self.response_length
        self.response += text or ""
        if ids:
            self.tokens = self.tokens + ids
            self.response_length += len(ids)
            self.loss_mask = (self.loss_mask or [1] * before) + [int(trainable)] * len(ids)
        if scores is not None:
            self.rollout_log_probs = (self.rollout_log_probs or [0.0] * before) + scores
        meta = meta_info or {}
        self._add_top_p(meta, len(ids), trainable)
        self._add_experts(args, meta)
        if "finish_reason" in meta:
            self._end_turn(args, meta)
        self._check()

    def _add_top_p(self, meta: dict[str, Any], count: int, trainable: bool) -> None:
        for ids_key, offsets_key in _TOP_P:
            if count and meta.get(ids_key) is not None:
                ids, offsets = decode_int32(meta[ids_key]), decode_int32(meta[offsets_key])
                if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != len(ids):
                    raise ValueError(f"top-p offsets {offsets} for {count} tokens, {len(ids)} ids")
                kept = list(self.rollout_top_p_token_ids or [])
                ends = list(self.rollout_top_p_token_offsets or [0])
                self.rollout_top_p_token_ids = kept + ids
                self.rollout_top_p_token_offsets = ends + [ends[-1] + end for end in offsets[1:]]
                return
        if count and not trainable and self.rollout_top_p_token_offsets is not None:
            ends = list(self.rollout_top_p_token_offsets)
            self.rollout_top_p_token_offsets = ends + [ends[-1]] * count

    def _add_experts(self, args: Any, meta: dict[str, Any]) -> None:
        if meta.get("routed_experts") is None:
            return
        flat = decode_int32(meta["routed_experts"])
        rows, width = len(self.tokens) - 1, args.num_layers * args.moe_router_topk
        if len(flat) != rows * width:
            raise ValueError(f"{len(flat)} routed experts for {rows} rows of {width}")
        self.rollout_routed_experts = [
            [
                flat[row * width + at : row * width + at + args.moe_router_topk]
                for at in range(0, width, args.moe_router_topk)
            ]
            for row in range(rows)
        ]

    def _end_turn(self, args: Any, meta: dict[str, Any]) -> None:
        if getattr(args, "sglang_speculative_algorithm", None):
            self.spec_info.spec_accept_token_num += meta.get("spec_accept_token_num", 0)
            self.spec_info.spec_draft_token_num += meta.get("spec_draft_token_num", 0)
            self.spec_info.spec_verify_ct += meta.get("spec_verify_ct", 0)
            self.spec_info.completion_token_num += meta.get("completion_tokens", 0)
        self.prefix_cache_info.cached_tokens += meta.get("cached_tokens", 0)
        self.prefix_cache_info.total_prompt_tokens += meta.get("prompt_tokens", 0)
        if "weight_version" in meta:
            self.weight_versions.append(meta["weight_version"])
        kinds = {"length": "TRUNCATED", "abort": "ABORTED", "stop": "COMPLETED"}
        kind = meta["finish_reason"]["type"]
        if kind in kinds:
            self.status = Sample.Status[kinds[kind]]

    def _check(self) -> None:
        for name in ("loss_mask", "rollout_log_probs"):
            values = getattr(self, name)
            if values is not None and len(values) != self.response_length:
                raise ValueError(f"{len(values)} of {name}, response_length {self.response_length}")
        offsets, ids = self.rollout_top_p_token_offsets, self.rollout_top_p_token_ids
        if (offsets is None) != (ids is None):
            raise ValueError("top-p token ids and offsets go together")
        if offsets is not None and ids is not None:
            if len(offsets) != self.response_length + 1 or offsets[-1] != len(ids):
                raise ValueError(f"{len(offsets)} top-p offsets for {self.response_length} tokens")
