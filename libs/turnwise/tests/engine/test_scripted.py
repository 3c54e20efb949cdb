"""The scripted engine keeps the contract of an engine."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from numpy.typing import NDArray
from turnwise.engine import Completion, SamplingParams
from turnwise.engine.scripted import Reply, ScriptedEngine, fail, reply
from turnwise.episode import Boundary, BoundaryError

PROMPT = np.array([1, 2, 3], np.int32)
STOP = SamplingParams(stop_token_ids=(9,), max_new_tokens=4)


def generate(engine: ScriptedEngine, params: SamplingParams = STOP) -> Completion:
    return asyncio.run(engine.generate(PROMPT, params, session_id="s"))


def test_replies_come_in_order_and_calls_are_kept() -> None:
    engine = ScriptedEngine([reply([5, 9]), reply([6], logprobs=[-0.5])])
    first, second = generate(engine), generate(engine)
    assert (first.ids.tolist(), first.logprobs.tolist(), first.finish) == ([5, 9], [-1, -1], "stop")
    assert (second.ids.tolist(), second.logprobs.tolist(), second.finish) == ([6], [-0.5], "length")
    assert [call.prompt_ids.tolist() for call in engine.calls] == [[1, 2, 3]] * 2
    assert first.ids.dtype == np.int32 and first.logprobs.dtype == np.float32


def test_a_function_sees_the_prompt() -> None:
    def answer(prompt_ids: NDArray[np.int32]) -> Reply:
        return reply([int(prompt_ids.sum())])

    assert generate(ScriptedEngine(answer)).ids.tolist() == [6]


def test_a_reply_is_cut_at_max_new_tokens() -> None:
    completion = generate(ScriptedEngine([reply([1, 2, 3, 4, 9], finish="stop")]))
    assert (completion.ids.tolist(), completion.finish) == ([1, 2, 3, 4], "length")


def test_a_scripted_failure_and_an_empty_script_are_the_engines_fault() -> None:
    engine = ScriptedEngine([fail("gone")])
    for message in ("gone", "the script has 1 replies"):
        with pytest.raises(BoundaryError, match=message) as caught:
            generate(engine)
        assert caught.value.boundary is Boundary.ENGINE


def test_log_probs_must_match_the_ids() -> None:
    with pytest.raises(ValueError, match="1 log-probs for 2 ids"):
        reply([1, 2], logprobs=[-1.0])


def test_a_delayed_reply_holds_up_nobody_and_close_aborts_it() -> None:
    engine = ScriptedEngine([reply([1], delay_s=60), reply([2])])

    async def run() -> None:
        slow = asyncio.create_task(engine.generate(PROMPT, STOP, session_id="slow"))
        await asyncio.sleep(0)
        fast = await engine.generate(PROMPT, STOP, session_id="fast")
        assert fast.ids.tolist() == [2]
        await engine.close()
        assert (await slow).finish == "abort"
        with pytest.raises(BoundaryError, match="closed"):
            await engine.generate(PROMPT, STOP, session_id="late")

    asyncio.run(run())


def test_released_sessions_are_kept() -> None:
    engine = ScriptedEngine([])
    asyncio.run(engine.release("s"))
    assert engine.released == ["s"]
