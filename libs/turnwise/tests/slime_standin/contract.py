"""What lies around slime's rollout: its arguments, the data source, training data, log hooks."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import Any

HOOKS = {
    "custom_generate_function_path": "turnwise.slime.generate",
    "custom_rm_path": "turnwise.slime.reward_func",
    "custom_reward_post_process_path": "turnwise.slime.post_process_rewards",
    "dynamic_sampling_filter_path": "turnwise.slime.dynamic_filter",
    "custom_rollout_log_function_path": "turnwise.slime.rollout_log",
    "custom_eval_rollout_log_function_path": "turnwise.slime.eval_log",
}


def make_args(**changes: Any) -> Namespace:
    """slime's arguments at their defaults, with our hooks."""
    values: dict[str, Any] = {
        **HOOKS,
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "reward_key": None,
        "eval_reward_key": None,
        "group_rm": False,
        "partial_rollout": False,
        "mask_offpolicy_in_partial_rollout": False,
        "rollout_batch_size": 2,
        "over_sampling_batch_size": 2,
        "n_samples_per_prompt": 4,
        "n_samples_per_eval_prompt": 1,
        "global_batch_size": 8,
        "rollout_temperature": 1.0,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_max_response_len": 1024,
        "rollout_max_context_len": 8192,
        "eval_max_context_len": None,
        "rollout_stop": None,
        "rollout_stop_token_ids": None,
        "rollout_skip_special_tokens": False,
        "rollout_seed": 42,
        "sglang_server_concurrency": 512,
        "sglang_router_ip": "127.0.0.1",
        "sglang_router_port": 0,
        "sglang_enable_deterministic_inference": False,
        "sglang_speculative_algorithm": None,
        "sglang_tool_call_parser": None,
        "use_rollout_routing_replay": False,
        "apply_chat_template_kwargs": None,
        "wandb_always_use_train_step": False,
        "log_reward_category": None,
        "load_debug_rollout_data": None,
        "use_wandb": False,
        "use_tensorboard": False,
        "rollout_num_gpus": None,
    }
    unknown = (
        changes.keys() - values.keys() - {"turnwise", "turnwise_run_dir", "hf_checkpoint"} - _MODEL
    )
    if unknown:
        raise TypeError(f"no arguments of slime: {sorted(unknown)}")
    return Namespace(**{**values, **changes})


_MODEL = {"num_layers", "moe_router_topk", "max_position_embeddings", "sglang_context_length"}


class DataSource:
    """Prompts in order, a group of copies each; groups that come back go first."""

    def __init__(self, args: Any, prompts: Sequence[Any]) -> None:
        self._args = args
        self._prompts = prompts
        self._groups = 0
        self._samples = 0
        self.buffer: list[list[Any]] = []

    def get_samples(self, count: int) -> list[list[Any]]:
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return [*taken, *(self._new_group() for _ in range(count - len(taken)))]

    def add_samples(self, groups: list[list[Any]]) -> None:
        for group in groups:
            assert len(group) == self._args.n_samples_per_prompt
            self.buffer.append(group)

    def _new_group(self) -> list[Any]:
        prompt = self._prompts[self._groups % len(self._prompts)]
        group = []
        for _ in range(self._args.n_samples_per_prompt):
            sample = copy.deepcopy(prompt)
            sample.group_index, sample.index = self._groups, self._samples
            self._samples += 1
            group.append(sample)
        self._groups += 1
        return group


def to_train_data(args: Any, groups: Iterable[Any]) -> dict[str, list[Any]]:
    """Training data as slime's converter makes it, with what its trainer takes for granted."""
    from slime.utils.misc import load_function  # type: ignore[import-not-found]  # pants: no-infer-dep

    _check_shape(groups)
    samples = list(_flat(groups))
    raw, rewards = load_function(args.custom_reward_post_process_path)(args, samples)
    assert len(raw) == len(rewards) == len(samples)
    masks = []
    for sample in samples:
        assert sample.tokens and sample.response_length > 0, "an empty row"
        assert len(sample.tokens) > sample.response_length, "a row without a prompt"
        assert len(sample.loss_mask) == sample.response_length
        assert len(sample.rollout_log_probs) == sample.response_length
        masks.append([0] * sample.response_length if sample.remove_sample else sample.loss_mask)
        if args.rollout_top_p != 1.0:
            assert len(sample.rollout_top_p_token_offsets) == sample.response_length + 1
            assert sample.rollout_top_p_token_offsets[-1] == len(sample.rollout_top_p_token_ids)
        if args.use_rollout_routing_replay:
            assert len(sample.rollout_routed_experts) == len(sample.tokens) - 1
    ids = [sample.rollout_id for sample in samples]
    sums = {name: 0 for name in ids}
    for name, mask in zip(ids, masks, strict=True):
        sums[name] += sum(mask)
    data = {
        "tokens": [sample.tokens for sample in samples],
        "loss_masks": masks,
        "rewards": rewards,
        "raw_reward": raw,
        "rollout_ids": ids,
        "rollout_mask_sums": [sums[name] for name in ids],
        "rollout_log_probs": [sample.rollout_log_probs for sample in samples],
    }
    if samples[0].metadata and "round_number" in samples[0].metadata:
        data["round_number"] = [sample.metadata["round_number"] for sample in samples]
    return data


def keep_all(args: Any, samples: list[Any], **kwargs: Any) -> Any:
    """A dynamic filter that keeps every group."""
    from slime.rollout.filter_hub.base_types import (  # type: ignore[import-not-found]  # pants: no-infer-dep
        DynamicFilterOutput,
    )

    return DynamicFilterOutput(True)


def _check_shape(groups: Iterable[Any]) -> None:
    """slime flattens by the shape of the first episode, and siblings share their rollout id."""
    lists = {isinstance(member, list) for group in groups for member in group}
    assert len(lists) == 1, "some episodes are a sample, others a list"
    for group in groups:
        for member in group:
            if isinstance(member, list):
                ids = {sample.rollout_id for sample in member}
                assert len(ids) == 1 and None not in ids, f"siblings with rollout ids {ids}"


def _flat(samples: Iterable[Any]) -> Iterable[Any]:
    for sample in samples:
        if isinstance(sample, list):
            yield from _flat(sample)
        else:
            yield sample
