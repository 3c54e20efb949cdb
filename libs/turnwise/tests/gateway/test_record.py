"""What a program was sampled through the gateway is what is trained, once, and nothing else is."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any
from unittest import mock

import numpy as np
import pytest
from turnwise.conversation.history import LONG_CHARACTERS
from turnwise.episode import Boundary, Limit
from turnwise.gateway import Bounds, chat
from turnwise.gateway.bodies import Bodies
from turnwise.rollout import derive_seed
from turnwise.testing import call, decode, fail, reply, say

from gateway.client import TOOLS, USER, Client, serving, trained


async def tool_turns(client: Client, turns: int, **fields: Any) -> list[Any]:
    """An agent's loop that answers each call, until the policy makes none."""
    history: list[Any] = [{"role": "system", "content": "You look."}, USER]
    for _ in range(turns):
        message = await client.chat(history, tools=TOOLS, **fields)
        history.append(message)
        for one in message.get("tool_calls") or ():
            history.append({"role": "tool", "tool_call_id": one["id"], "content": "grass"})
        if history[-1] is message:
            history.append({"role": "user", "content": "and now?"})
    return history


async def test_text_before_a_call_and_parallel_calls_stay_one_segment_all_of_it_trained() -> None:
    two = "I look." + call("look", at="a") + call("look", at="b")
    async with serving(*[two] * 10, "Done.") as client:
        await tool_turns(client, 11)
        assert trained(client) == [(two + "<|im_end|>") * 10 + "Done.<|im_end|>"]
        (sample,) = client.record.samples().samples
        assert client.record.samples().dropped == ()
        for made in client.engine.calls:
            assert np.array_equal(made.prompt_ids, sample.ids[: len(made.prompt_ids)])
        seeds = [made.params.seed for made in client.engine.calls]
        assert seeds == [derive_seed(7, "turn", turn) for turn in range(11)]
        assert client.record.metrics()["tool_calls"] == 20
        ids = [one["id"] for m in client.record.transcript() for one in m.get("tool_calls") or ()
               if m["author"] == "policy"]  # fmt: skip
        assert len(set(ids)) == 20


async def test_a_changed_argument_is_another_history_and_the_sampled_turn_stays() -> None:
    async with serving(call("look", at="a"), "Done.") as client:
        message = await client.chat([USER], tools=TOOLS)
        message["tool_calls"][0]["function"]["arguments"] = '{"at": "b"}'
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "g"}
        await client.chat([USER, message, result], tools=TOOLS)
        assert '"at": "b"' in decode(client.engine.calls[1].prompt_ids)
        assert trained(client) == [call("look", at="a") + "<|im_end|>", "Done.<|im_end|>"]


async def test_a_marked_retry_gets_the_same_answer_without_sampling() -> None:
    async with serving("one") as client:
        body = {"model": "m", "messages": [USER]}
        _, _, first = await client.post("chat/completions", body)
        mark = {"x-stainless-retry-count": "1"}
        _, _, again = await client.post("chat/completions", body, headers=mark)
        assert first == again and len(client.engine.calls) == 1
        assert trained(client) == ["one<|im_end|>"]
        assert client.record.metrics()["replays"] == 1


async def test_the_same_request_without_a_mark_is_a_second_sample() -> None:
    async with serving("", "two") as client:
        assert (await client.chat([USER]))["content"] == "", "which some agents ask again for"
        await client.chat([USER])
        assert trained(client) == ["<|im_end|>", "two<|im_end|>"]
        weights = [sample.weight for sample in client.record.samples().samples]
        assert abs(sum(weights) - 1) < 1e-9


async def test_a_long_history_is_encoded_beside_the_loop_and_nothing_else_touches_the_tokens() -> (
    None
):
    threads: list[bool] = []
    begun, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    long = {"role": "user", "content": "x" * LONG_CHARACTERS}
    limits = {"context": 2 * LONG_CHARACTERS}
    async with serving("one", "two", "three", limits=limits) as client:
        prepare = client.record.tree.prepare

        def watched(history: Any, **given: Any) -> Any:
            threads.append(threading.current_thread() is not threading.main_thread())
            if threads[-1]:
                loop.call_soon_threadsafe(begun.set)
                go.wait(10)
            return prepare(history, **given)

        with mock.patch.object(type(client.record.tree), "prepare", staticmethod(watched)):
            asking = asyncio.create_task(client.chat([long]))
            await begun.wait()
            other = asyncio.create_task(client.chat([USER]))
            await asyncio.sleep(0.01)
            assert threads == [True] and not client.engine.calls
            go.set()
            assert (await asking)["content"] == "one" and (await other)["content"] == "two"
            begun.clear()
            go.clear()
            request = chat.read({"model": "m", "messages": [long, USER]}, Bodies())
            asked = asyncio.create_task(client.record.ask(request))
            await begun.wait()
            asked.cancel()
            go.set()
            await asyncio.wait([asked])
        assert asked.cancelled() and threads == [True, False, True]
        assert trained(client) == ["one<|im_end|>", "two<|im_end|>"]
        assert client.record.samples().dropped[-1].detail == "the client left"


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
async def test_requests_at_the_same_time_each_stand_behind_their_own_prompt(
    order: list[int],
) -> None:
    def answer(prompt: Any) -> Any:
        name = decode(prompt).split("<|im_end|>")[-2][-1]
        if not name.isdigit():
            return say("one")
        return say(f"to {name}", delay_s=0.02 * (1 + order.index(int(name))))

    async with serving(answer) as client:
        begun = [USER, await client.chat([USER])]
        asking = []
        for i in range(5):
            history = [*begun, {"role": "user", "content": f"I am {i}"}]
            asking.append(asyncio.create_task(client.chat(history)))
            while len(client.engine.calls) < i + 2:
                await asyncio.sleep(0.001)
        messages = await asyncio.gather(*asking)
        assert [one["content"] for one in messages] == [f"to {i}" for i in range(5)]
        first, *others = (f"to {i}<|im_end|>" for i in range(5))
        assert trained(client) == [f"one<|im_end|>{first}", *others]
        for i, sample in enumerate(client.record.samples().samples):
            assert f"I am {i}<|im_end|>\n<|im_start|>assistant\nto {i}" in decode(sample.ids)


SAID = {"role": "assistant", "content": "I saw grass."}
SUMMARY = {"role": "user", "content": "So far: grass."}
SYSTEM = {"role": "system", "content": "You look."}
OTHER_HISTORIES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "a text that was cut down": ([USER, {**SAID, "content": "I saw"}, USER], {}),
    "a summary": ([SUMMARY], {}),
    "a turn left out": ([USER, {"role": "user", "content": "Call a tool."}], {}),
    "another system prompt": ([SYSTEM, USER, SAID, USER], {}),
    "other tools": ([USER, SAID, USER], {"tools": TOOLS}),
}


@pytest.mark.parametrize("name", OTHER_HISTORIES)
async def test_another_history_has_a_segment_of_its_own_and_goes_on_there(name: str) -> None:
    history, fields = OTHER_HISTORIES[name]
    async with serving("I saw grass.", "Done.", "Yes.") as client:
        await client.chat([USER])
        message = await client.chat(history, **fields)
        await client.chat([*history, message, USER], **fields)
        assert trained(client) == ["I saw grass.<|im_end|>", "Done.<|im_end|>Yes.<|im_end|>"]
        shown = decode(client.engine.calls[1].prompt_ids)
        assert ("I saw grass." in shown) is (SAID in history)
        assert all(one["content"] in shown for one in history)
        assert sum(sample.weight for sample in client.record.samples().samples) == 1
        assert client.record.metrics()["forks"] == 0


async def test_a_client_that_leaves_cancels_its_sampling_and_nothing_of_it_is_trained() -> None:
    async with serving(say("never", delay_s=3600), "two", bounds=Bounds(grace_s=0)) as client:
        asking = asyncio.create_task(client.chat([USER], stream=True))
        while not client.engine.calls:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while client.record.busy:
            await asyncio.sleep(0.01)
        assert client.record.samples().dropped[0].reason == "abandoned"
        assert (await client.chat([USER, USER]))["content"] == "two"
        assert trained(client) == ["two<|im_end|>"]


async def test_a_retry_within_the_grace_joins_the_turn_under_way() -> None:
    async with serving(say("slow", delay_s=0.5), bounds=Bounds(grace_s=3600)) as client:
        asking = asyncio.create_task(client.chat([USER]))
        while not client.engine.calls:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert (await client.chat([USER]))["content"] == "slow"
        assert len(client.engine.calls) == 1 and trained(client) == ["slow<|im_end|>"]


async def test_a_marked_retry_joins_a_turn_whose_first_client_still_waits() -> None:
    async with serving(say("slow", delay_s=0.2)) as client:
        first = asyncio.create_task(client.chat([USER]))
        while not client.engine.calls:
            await asyncio.sleep(0.01)
        mark = {"x-stainless-retry-count": "1"}
        _, _, data = await client.post("chat/completions", {"messages": [USER]}, headers=mark)
        assert json.loads(data)["choices"][0]["message"] == await first
        assert len(client.engine.calls) == 1 and trained(client) == ["slow<|im_end|>"]


async def test_an_answer_that_was_cut_comes_again_for_an_unmarked_request_streamed_or_not() -> None:
    async with serving("one") as client:
        given = await client.record.ask(chat.read({"messages": [USER], "stream": True}, Bodies()))
        given.lost("the stream was cut")
        assert (await client.chat([USER]))["content"] == "one"
        assert len(client.engine.calls) == 1 and trained(client) == ["one<|im_end|>"]


async def test_a_stream_whose_connection_breaks_comes_again_without_sampling() -> None:
    async with serving("one") as client:
        # The answer repeats it, so that no buffer holds the answer whole.
        body = {"input": "x", "stream": True, "metadata": {"a": "x" * 8_000_000}}
        host, port = client.url.split("/")[2].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        data = json.dumps(body).encode()
        path = client.url.split(port, 1)[1]
        head = f"POST {path}/v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}"
        writer.write(f"{head}\r\n\r\n".encode() + data)
        while not client.record.counts["turns"]:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        async with asyncio.timeout(30):
            while client.record.tree.samples().dropped[0].detail == "delivery was not confirmed":
                await asyncio.sleep(0.01)
        status, _, again = await client.post("responses", {**body, "stream": False})
        assert status == 200 and json.loads(again)["output"][0]["content"][0]["text"] == "one"
        assert len(client.engine.calls) == 1 and trained(client) == ["one<|im_end|>"]


async def test_a_history_that_holds_a_turn_whose_stream_was_cut_goes_on_behind_it() -> None:
    async with serving("one", "two") as client:
        given = await client.record.ask(chat.read({"messages": [USER], "stream": True}, Bodies()))
        given.lost("the stream was cut")
        assert client.record.samples().dropped[0].reason == "undelivered"
        await client.chat([USER, {"role": "assistant", "content": "one"}, USER])
        assert trained(client) == ["one<|im_end|>two<|im_end|>"]


async def test_a_dead_engine_loses_the_rollout_and_no_retry_is_asked_for() -> None:
    async with serving(fail("gone"), "well") as client:
        for _ in range(2):
            status, headers, data = await client.post("chat/completions", {"messages": [USER]})
            assert status == 503 and headers["x-should-retry"] == "false"
            assert "the engine failed" in json.loads(data)["error"]["message"]
        assert client.record.failure is not None
        assert client.record.failure.boundary is Boundary.ENGINE
        assert client.record.failed.is_set() and len(client.engine.calls) == 1


async def test_a_full_context_is_refused_by_name_and_is_the_policys_limit() -> None:
    async with serving("x" * 200, limits={"context": 100}) as client:
        message = await client.chat([USER])
        assert client.record.limit is Limit.CONTEXT
        history = [USER, message, {"role": "user", "content": "y" * 99}]
        status, headers, data = await client.post("chat/completions", {"messages": history})
        assert status == 400 and headers["x-should-retry"] == "false"
        assert json.loads(data)["error"]["code"] == "context_length_exceeded"
        assert client.record.limit is Limit.CONTEXT
        body = {"messages": [{"role": "user", "content": "y" * 150}]}
        needed = await client.record.prompt_tokens(chat.read(body, Bodies()))
        _, _, data = await client.post("chat/completions", body)
        assert f"takes {needed} tokens" in json.loads(data)["error"]["message"]
        assert "first_prompt" not in client.record.info()
    async with serving("x", limits={"context": 100}) as client:
        await client.post("chat/completions", body)
        assert client.record.info()["first_prompt"] == {"needed": needed, "limit": 100}


async def test_turns_are_bounded() -> None:
    async with serving("one", "two", bounds=Bounds(max_turns=1)) as client:
        await client.chat([USER])
        status, headers, data = await client.post("chat/completions", {"messages": [USER]})
        assert status == 400 and headers["x-should-retry"] == "false"
        assert json.loads(data)["error"]["code"] == "turn_limit_reached"
        assert client.record.limit is Limit.TURNS


async def test_a_turn_that_is_cut_says_so_and_the_clients_bound_counts() -> None:
    async with serving("four", "four") as client:
        body = {"messages": [USER], "max_tokens": 2}
        _, _, data = await client.post("chat/completions", body)
        choice = json.loads(data)["choices"][0]
        assert choice["finish_reason"] == "length" and choice["message"]["content"] == "fo"
        await client.chat([USER, choice["message"], {"role": "user", "content": "go on"}])
        assert "assistant\nfo<|im_end|>" in decode(client.engine.calls[1].prompt_ids)
        assert trained(client) == ["fofour<|im_end|>"], "the end that was put back is no action"


async def test_calls_that_can_not_be_read_stay_in_the_text() -> None:
    broken = "<tool_call>\n{nothing\n</tool_call>"
    async with serving(broken, "ok") as client:
        message = await client.chat([USER], tools=TOOLS)
        assert message["content"] == broken and "tool_calls" not in message
        await client.chat([USER, message, USER], tools=TOOLS)
        assert trained(client) == [broken + "<|im_end|>ok<|im_end|>"]


async def test_an_aborted_turn_ends_the_rollout() -> None:
    async with serving(reply([], finish="abort")) as client:
        status, headers, _ = await client.post("chat/completions", {"messages": [USER]})
        assert status == 410 and headers["x-should-retry"] == "false" and client.record.aborted
        assert client.record.info()["weight_versions"] == []


async def test_the_names_of_fields_that_are_ignored_are_bounded() -> None:
    async with serving("one") as client:
        await client.chat([USER], **{f"field{i}": 1 for i in range(200)}, **{"\ud800": 1})
        found = [name for name in client.record.counts if name.startswith("ignored/")]
        assert len(found) == 65 and client.record.counts["ignored/other"] == 137
