"""AgentFlow as slime's own contract tests call a method: with bare arguments, one sample at a time.

The other hooks are those of `contract_hooks`. The test of `generate` wants one sample, and gets the
first of the episode's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from contract_hooks import (
    dynamic_filter,
    eval_log,
    post_process_rewards,
    reward_func,
    rollout_log,
)
from planner import POLICY, Planner, options
from slime_standin.contract import make_args
from turnwise import slime as hooks
from turnwise.testing.servers import FakeSGLang, in_a_thread

__all__ = ["dynamic_filter", "eval_log", "post_process_rewards", "reward_func", "rollout_log"]


@cache
def _port() -> int:
    server = FakeSGLang(Planner().answer)
    in_a_thread(server)
    return server.port


async def generate(
    args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False
) -> Any:
    whole = make_args(hf_checkpoint=str(POLICY), turnwise=options(), sglang_router_port=_port())
    for name, value in vars(whole).items():
        if not hasattr(args, name):
            setattr(args, name, value)
    sample.prompt, sample.label = "What is 6 * 7?", "42"
    try:
        made = await hooks.generate(args, sample, sampling_params, evaluation=evaluation)
    finally:
        await hooks.close()
    assert len(made) > 1
    assert {one.rollout_id for one in made} == {sample.index}
    return made[0]
