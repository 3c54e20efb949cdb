"""What the runs in slime's own rollout code have in common: arguments, manager, tracker.

Imported where the path holds a checkout of slime in place of the stand-in. sglang and its router
are empty modules, `ray.put` gives its value back, and what slime would log is kept in `LOGGED`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import empty_sglang  # noqa: F401
import ray
from slime.observability import logging_utils
from slime.ray.rollout import RolloutManager
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils.http_utils import init_http_client
from slime.utils.misc import load_function
from slime_standin.contract import make_args

LOGGED: list[dict[str, Any]] = []


def arguments(data: Path, **given: Any) -> Any:
    """slime's arguments for the data file, with `given` of `make_args` among them; opens slime's
    own connections."""
    logging_utils.log = lambda args, metrics, step_key: LOGGED.append(metrics)
    ray.put = lambda value, **more: value  # type: ignore[assignment]
    args = make_args(n_samples_per_prompt=4, rollout_batch_size=2, global_batch_size=8, **given)
    more: dict[str, Any] = {
        "rollout_global_dataset": True,
        "prompt_data": str(data),
        "input_key": "index",
        "label_key": None,
        "metadata_key": "metadata",
        "tool_key": None,
        "multimodal_keys": None,
        "apply_chat_template": False,
        "rollout_max_prompt_len": None,
        "eval_max_prompt_len": None,
        "rollout_shuffle": True,
        "dump_details": None,
        "buffer_filter_path": None,
        "rollout_num_engines": 1,
        "use_distributed_post": False,
        "sglang_dp_size": 1,
        "rollout_sample_hook_path": [],
        "rollout_sample_filter_path": None,
        "rollout_all_samples_process_path": None,
        "ci_test": False,
        "log_passrate": False,
        "custom_convert_samples_to_train_data_path": None,
        "use_dynamic_batch_size": False,
        "micro_batch_size": 1,
        "max_tokens_per_gpu": None,
        "balance_data": False,
        "balance_by_flops": False,
    }
    for name, value in more.items():
        setattr(args, name, value)
    init_http_client(args)
    return args


def manager_of(args: Any) -> Any:
    """The manager without engines: what it does to samples needs its arguments alone."""
    made = getattr(RolloutManager, "__ray_metadata__", None)
    cls = made.modified_class if made is not None else RolloutManager
    manager = cls.__new__(cls)
    manager.args = args
    manager.custom_reward_post_process_func = load_function(args.custom_reward_post_process_path)
    manager.custom_convert_samples_to_train_data_func = None
    manager.generate_rollout = generate_rollout
    manager.train_parallel_config = {
        "dp_size": 2,
        "cp_size": 1,
        "vpp_size": 1,
        "microbatch_group_size_per_vp_stage": 1,
    }
    return manager
