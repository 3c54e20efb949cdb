"""A recorded episode is said again by what was recorded, trained or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gateway.client import USER, Client, serving
from turnwise.episode import Ending, Episode
from turnwise.local.again import RecordedEngine
from turnwise.run.traces import parse_trace, trace_row
from turnwise.testing import byte_tokenizer, decode

UNDER_A_GRAMMAR = {"response_format": {"type": "json_object"}}


def recorded(client: Client) -> RecordedEngine:
    """What the trace of the episode holds."""
    samples = client.record.samples().samples
    episode = Episode("r0", "g", "t", samples, Ending.finished(), 1.0, ())
    row = trace_row(episode, byte_tokenizer(), step=0, kind="train", why="best")
    return RecordedEngine(parse_trace(row).segments)


async def test_a_turn_that_is_not_trained_is_said_again_as_well() -> None:
    async with serving('{"at": "b"}', "free", "other", "last") as client:
        client.engine.takes_grammar = True
        told = await client.chat([USER], **UNDER_A_GRAMMAR)
        echo = [USER, {"role": "assistant", "content": told["content"]}, USER]
        await client.chat(echo)
        # A fork, whose segment holds the first turn too.
        await client.chat([*echo[:2], {"role": "user", "content": "or so?"}])
        engine = recorded(client)
        assert engine.takes_grammar
        for call, said in zip(client.engine.calls, ('{"at": "b"}', "free", "other"), strict=True):
            params = replace(call.params, max_new_tokens=100)
            found = await engine.generate(call.prompt_ids, params, session_id="s")
            assert decode(found.ids) == f"{said}<|im_end|>"
            assert found.finish == "stop" and np.isfinite(found.logprobs).all()
        assert not any(engine._turns.values()), "each turn is said once"


async def test_stop_tokens_that_a_template_writes_are_no_turn() -> None:
    async with serving("cut", "end") as client:
        first = await client.chat([USER], max_tokens=2)
        echo = [USER, {"role": "assistant", "content": first["content"]}, USER]
        await client.chat(echo)
        turns = [ids.tolist() for kept in recorded(client)._turns.values() for ids, _ in kept]
        assert len(turns) == 2 and len(turns[0]) == 2
