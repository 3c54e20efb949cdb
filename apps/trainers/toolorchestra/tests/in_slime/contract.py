"""ToolOrchestra as slime's own contract tests call a method: bare arguments, one sample at a time.

The other hooks are those of `contract_hooks`. The test of `generate` wants one sample, and gets the
first of the episode's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cast import POLICY, Policy, options, says
from contract_hooks import (
    dynamic_filter,
    eval_log,
    post_process_rewards,
    reward_func,
    rollout_log,
)
from slime_standin.contract import make_args
from turnwise import slime as hooks
from turnwise.testing.servers import FakeChat, FakeSGLang, in_a_thread

__all__ = ["dynamic_filter", "eval_log", "post_process_rewards", "reward_func", "rollout_log"]


@cache
def _servers() -> tuple[int, str]:
    server, experts = FakeSGLang(Policy().answer), FakeChat(says)
    in_a_thread(server)
    in_a_thread(experts)
    return server.port, f"{experts.url}/v1"


async def generate(
    args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False
) -> Any:
    port, url = _servers()
    whole = make_args(hf_checkpoint=str(POLICY), turnwise=options(url), sglang_router_port=port)
    for name, value in vars(whole).items():
        if not hasattr(args, name):
            setattr(args, name, value)
    sample.prompt, sample.label = "What is 6 * 7?", "42"
    try:
        made = await hooks.generate(args, sample, sampling_params, evaluation=evaluation)
    finally:
        await hooks.close()
    assert {one.rollout_id for one in made} == {sample.index}
    return made[0]
