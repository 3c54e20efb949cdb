"""The loop around a generate hook: what it is given, what is expected of it, and when.

1. Groups are tasks. A finished group passes the dynamic filter; when enough are kept, everything
   still under way is aborted: the flag is set, servers are told, all tasks are awaited.
2. With partial rollout the aborted groups go back to the data source, a list of single samples
   each. A completed sample in such a group is not generated again; the others are.
3. A sample, or any of a list, that comes back ABORTED gets no reward. Otherwise `--custom-rm-path`
   is asked where the reward is None, with a list for a list.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..utils.http_utils import get, post
from ..utils.misc import SingletonMeta, load_function
from ..utils.types import Sample


class GenerateState(metaclass=SingletonMeta):
    def __init__(self, args: Any) -> None:
        self.args = args
        self.semaphore = asyncio.Semaphore(args.sglang_server_concurrency)
        self.sampling_params: dict[str, Any] = {
            "temperature": args.rollout_temperature,
            "top_p": args.rollout_top_p,
            "top_k": args.rollout_top_k,
            "max_new_tokens": args.rollout_max_response_len,
            "stop": args.rollout_stop,
            "stop_token_ids": args.rollout_stop_token_ids,
            "skip_special_tokens": args.rollout_skip_special_tokens,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        }
        if args.rollout_top_p != 1.0:
            self.sampling_params["custom_params"] = {"return_top_p_token_ids": True}
        self.reset()

    def reset(self) -> None:
        self.remaining_batch_size = 0
        self.pendings: set[asyncio.Task[Any]] = set()
        self.aborted = False

    @contextmanager
    def dp_rank_context(self) -> Iterator[int]:
        yield 0

    def submit_generate_tasks(self, groups: list[list[Sample]]) -> None:
        for group in groups:
            work = generate_and_rm_group(self.args, group, dict(self.sampling_params))
            self.pendings.add(asyncio.create_task(work))
        self.remaining_batch_size += len(groups)


async def generate_and_rm(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Any:
    masks = args.partial_rollout and args.mask_offpolicy_in_partial_rollout
    if masks and sample.response_length > 0:
        sample.loss_mask = [0] * sample.response_length
    if sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED):
        assert args.group_rm or sample.reward is not None
        return sample
    state = GenerateState(args)
    async with state.semaphore:
        if state.aborted:
            sample.status = Sample.Status.ABORTED
            return sample
        with state.dp_rank_context():
            path = sample.generate_function_path or args.custom_generate_function_path
            hook = load_function(path)
            more = {"evaluation": evaluation} if "evaluation" in _parameters(hook) else {}
            result = await hook(args, sample, sampling_params, **more)
    if args.group_rm:
        return result
    samples = result if isinstance(result, list) else [result]
    if any(one.status == Sample.Status.ABORTED for one in samples):
        return result
    unrewarded = [one for one in samples if one.reward is None]
    if isinstance(result, list):
        rewards = await load_function(args.custom_rm_path)(args, unrewarded)
        for one, reward in zip(unrewarded, rewards, strict=True):
            one.reward = reward
    elif unrewarded:
        result.reward = await load_function(args.custom_rm_path)(args, result)
    return result


async def generate_and_rm_group(
    args: Any, group: list[Sample], sampling_params: dict[str, Any], evaluation: bool = False
) -> list[Any]:
    if GenerateState(args).aborted:
        return group
    for sample in group:
        if sample.session_id is None:
            sample.session_id = str(uuid.uuid4())
    work = [generate_and_rm(args, sample, dict(sampling_params), evaluation) for sample in group]
    return list(await asyncio.gather(*work))


async def abort(args: Any, rollout_id: int) -> list[list[Sample]]:
    state = GenerateState(args)
    assert not state.aborted
    state.aborted = True
    router = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    for worker in (await get(f"{router}/workers"))["workers"]:
        await post(f"{worker['url']}/abort_request", {"abort_all": True})
    groups: list[list[Sample]] = []
    if state.pendings:
        await asyncio.wait(state.pendings)
    for task in state.pendings:
        group = task.result()
        if args.partial_rollout:
            for sample in group:
                if sample.response and "start_rollout_id" not in sample.metadata:
                    sample.metadata["start_rollout_id"] = rollout_id
            groups.append(group)
    state.pendings = set()
    return groups


async def generate_rollout_async(
    args: Any, rollout_id: int, get_samples: Callable[[int], list[list[Sample]]]
) -> tuple[list[Any], dict[str, int], list[list[Sample]]]:
    """Kept groups, filter reasons as metrics, and groups for the data source."""
    state = GenerateState(args)
    keeps = load_function(args.dynamic_sampling_filter_path)
    kept: list[Any] = []
    reasons: Counter[str] = Counter()
    while len(kept) < args.rollout_batch_size:
        while state.remaining_batch_size < args.rollout_batch_size:
            state.submit_generate_tasks(get_samples(args.over_sampling_batch_size))
        done, state.pendings = await asyncio.wait(
            state.pendings, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            group = task.result()
            assert len(group) == args.n_samples_per_prompt
            verdict = keeps(args, group)
            if not verdict.keep:
                reasons[f"rollout/dynamic_filter/drop_{verdict.reason}"] += 1
                state.remaining_batch_size -= 1
            elif len(kept) < args.rollout_batch_size:
                kept.append(group)
    again = await abort(args, rollout_id)
    state.reset()
    return sorted(kept, key=_index), dict(reasons), again


async def eval_rollout(
    args: Any, prompts: list[Sample], sampling_params: dict[str, Any], name: str = "eval"
) -> dict[str, dict[str, list[Any]]]:
    tasks = []
    for number, prompt in enumerate(prompts):
        for trial in range(args.n_samples_per_eval_prompt):
            sample = copy.deepcopy(prompt)
            sample.index = number * args.n_samples_per_eval_prompt + trial
            tasks.append(generate_and_rm(args, sample, dict(sampling_params), evaluation=True))
    samples: list[Sample] = []
    for result in await asyncio.gather(*tasks):
        samples.extend(result if isinstance(result, list) else [result])
    key = args.eval_reward_key or args.reward_key
    return {
        name: {
            "rewards": [one.reward[key] if key else one.reward for one in samples],
            "truncated": [one.status == Sample.Status.TRUNCATED for one in samples],
            "samples": samples,
        }
    }


def _parameters(function: Any) -> Any:
    return inspect.signature(function).parameters


def _index(group: Any) -> int:
    first = group[0][0] if isinstance(group[0], list) else group[0]
    return int(first.index)
