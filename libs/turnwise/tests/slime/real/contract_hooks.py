"""Our hooks as slime's own contract tests call them: with bare arguments, one test at a time.

Those tests give an object with a handful of attributes, and two of them look for a mark that
their own reference function leaves. Here the missing arguments are filled in, the mark is left,
and a server runs in a thread; the hooks themselves are the shipped ones.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

from slime_standin.contract import make_args
from slime_standin.errands import Courier, save_tokenizer
from turnwise import slime as hooks
from turnwise.slime import dynamic_filter, post_process_rewards, reward_func
from turnwise.testing.servers import FakeSGLang

__all__ = ["dynamic_filter", "post_process_rewards", "reward_func"]


@cache
def _port() -> int:
    started = threading.Event()
    found: list[int] = []

    async def serve() -> None:
        async with FakeSGLang(Courier().answer) as server:
            found.append(server.port)
            started.set()
            await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    started.wait()
    return found[0]


@cache
def _checkpoint() -> str:
    return save_tokenizer(Path(tempfile.mkdtemp()))


def _fill(args: Any) -> None:
    options = {"method": "slime_standin.errands:Errands"}
    whole = make_args(hf_checkpoint=_checkpoint(), turnwise=options, sglang_router_port=_port())
    for name, value in vars(whole).items():
        if not hasattr(args, name):
            setattr(args, name, value)


async def generate(
    args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False
) -> Any:
    _fill(args)
    sample.prompt = "0"
    try:
        return await hooks.generate(args, sample, sampling_params, evaluation=evaluation)
    finally:
        await hooks.close()


def rollout_log(
    rollout_id: int, args: Any, samples: Any, rollout_extra_metrics: Any, rollout_time: float
) -> bool:
    _fill(args)
    args.logged_rollout_id = rollout_id
    return hooks.rollout_log(rollout_id, args, samples, rollout_extra_metrics, rollout_time)


def eval_log(rollout_id: int, args: Any, data: Any, extra_metrics: Any) -> bool:
    _fill(args)
    args.logged_eval_rollout_id = rollout_id
    return hooks.eval_log(rollout_id, args, data, extra_metrics)
