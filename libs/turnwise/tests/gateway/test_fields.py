"""What becomes of a request's fields: stop strings, log-probs, grammars, and the table of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from turnwise.engine import GrammarRefused
from turnwise.engine.scripted import Reply
from turnwise.engine.sglang import SGLangEngine
from turnwise.gateway import Bounds, fields
from turnwise.testing import byte_policy, call, decode, encode, reply, say
from turnwise.testing.servers import Call, FakeSGLang, Turn

from gateway.client import TOOLS, USER, Client, events, serving, trained

DOCS = Path(__file__).parents[4] / "docs/gateway.md"
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("chat/completions", "response_format.json_schema",
     {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
    ("responses", "text.format",
     {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}),
    ("messages", "output_config.format",
     {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    ("messages", "output_format", {"output_format": {"type": "json_schema", "schema": SCHEMA}}),
]  # fmt: skip


def test_the_documents_table_is_the_codes() -> None:
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    start = lines.index("| field | |") + 2
    assert lines[start : lines.index("", start)] == fields.table()


@pytest.mark.parametrize("name", fields.REFUSED)
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
async def test_a_field_that_is_refused_is_so_in_every_dialect(path: str, name: str) -> None:
    async with serving("never") as client:
        status, _, data = await client.post(
            path, {"messages": [USER], "input": "x", name: "never harmless"}
        )
        assert status == 400 and f"{name}: " in json.loads(data)["error"]["message"]
        assert client.engine.calls == []


def refused(message: str) -> Any:
    """SGLang's refusal of every request."""

    async def refuse(request: Any, honest: Any) -> web.Response:
        return web.json_response({"error": {"message": message}}, status=400)

    return lambda call: refuse


async def stopped(client: Client, path: str, **fields: Any) -> Any:
    status, _, data = await client.post(
        path, {"messages": [USER], "input": [USER], "max_tokens": 500, **fields}
    )
    assert status == 200, data
    return json.loads(data)


async def test_an_answer_ends_before_its_stop_string_and_the_turn_with_its_last_token() -> None:
    text = "I think.\nObservation: made up"
    async with serving(text, "Done.") as client:
        answer = await stopped(client, "chat/completions", stop=["never", "Observation:"])
        (choice,) = answer["choices"]
        assert choice["message"]["content"] == "I think.\n" and choice["finish_reason"] == "stop"
        sampled = "I think.\nObservation:"
        assert answer["usage"]["completion_tokens"] == len(encode(sampled))
        assert client.engine.calls[0].params.stop == ("never", "Observation:")
        # The client appends the stop string, as code agents do: still the same turn.
        echo = {"role": "assistant", "content": "I think.\nObservation:"}
        await client.chat([USER, echo, USER])
        assert trained(client) == [f"{sampled}Done.<|im_end|>"]
        prompt = decode(client.engine.calls[1].prompt_ids)
        assert prompt.endswith(
            f"{sampled}<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        )


async def test_the_first_stop_string_counts_and_messages_names_it() -> None:
    two = call("look", at="a") + "END" + call("look", at="b") + "STOP"
    async with serving(two) as client:
        tools = [{"name": "look", "input_schema": SCHEMA}]
        answer = await stopped(client, "messages", stop_sequences=["STOP", "END"], tools=tools)
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")
        (block,) = answer["content"]
        assert block["type"] == "tool_use" and block["input"] == {"at": "a"}
        assert trained(client) == [call("look", at="a") + "END"]


@pytest.mark.parametrize("after", ["", "!!", "!! and more"])
async def test_the_cut_is_to_the_token_whatever_was_sampled_behind(after: str) -> None:
    async with serving(reply(encode("ab€c" + after), finish="length")) as client:
        answer = await stopped(client, "responses", stop="€c")
        assert answer["output"][0]["content"][0]["text"] == "ab" and answer["status"] == "completed"
        assert trained(client) == ["ab€c"] and client.record.limit is None


async def test_a_stop_string_that_is_not_said_changes_nothing() -> None:
    async with serving("one") as client:
        await stopped(client, "chat/completions", stop="x")
        assert trained(client) == ["one<|im_end|>"]


async def test_log_probs_are_those_of_the_record() -> None:
    ids = [*encode("hé" + call("look", at="a")), 257]
    said = reply(ids, logprobs=[-0.125 * k for k in range(len(ids))], finish="stop")
    async with serving(said) as client:
        body = {"messages": [USER], "tools": TOOLS, "logprobs": True, "top_logprobs": 0}
        _, _, data = await client.post("chat/completions", body)
        answer = json.loads(data)
        found = answer["choices"][0]["logprobs"]["content"]
        assert len(found) == answer["usage"]["completion_tokens"] == len(ids)
        (sample,) = client.record.samples().samples
        recorded = sample.logprobs[sample.loss_mask == 1]
        assert np.array_equal(np.array([one["logprob"] for one in found], np.float32), recorded)
        assert found[0] == {"token": "h", "logprob": 0.0, "bytes": [104], "top_logprobs": []}
        assert found[1]["bytes"] is None, "half a character"
        mark = {"x-stainless-retry-count": "1"}
        _, _, data = await client.post("chat/completions", {**body, "stream": True}, headers=mark)
        chunks = [one["choices"][0]["logprobs"] for one in events(data)[:-1]]
        assert [one for one in chunks if one] == [answer["choices"][0]["logprobs"]]


async def test_responses_says_log_probs_where_they_are_included() -> None:
    async with serving("ok") as client:
        included = await stopped(client, "responses", include=["message.output_text.logprobs"])
        (part,) = included["output"][0]["content"]
        assert [one["token"] for one in part["logprobs"]] == ["o", "k", "<|im_end|>"]


@pytest.mark.parametrize(("path", "field", "asked"), ASKED)
async def test_a_schema_is_refused_where_the_engine_takes_no_grammar(
    path: str, field: str, asked: Any
) -> None:
    async with serving("never") as client:
        status, _, data = await client.post(path, {"messages": [USER], "input": "x", **asked})
        message = json.loads(data)["error"]["message"]
        assert status == 400 and field in message and "takes no grammar" in message


@pytest.mark.parametrize(("path", "field", "asked"), ASKED)
async def test_a_turn_under_a_grammar_is_served_and_not_trained(
    path: str, field: str, asked: Any
) -> None:
    async with serving('{"at": "b"}', "free") as client:
        client.engine.takes_grammar = True
        await stopped(client, path, **asked)
        assert json.loads(client.engine.calls[0].params.json_schema or "") == SCHEMA
        assert trained(client) == []
        (drop,) = client.record.samples().dropped
        assert drop.reason == "constrained"
        echo = {"role": "assistant", "content": '{"at": "b"}'}
        await client.chat([USER, echo, USER])
        assert trained(client) == ["free<|im_end|>"]
        assert client.record.metrics()["constrained_turns"] == 1


async def test_a_turn_under_a_grammar_is_trained_where_that_is_asked_for() -> None:
    async with serving("{}", bounds=Bounds(constrained="train")) as client:
        client.engine.takes_grammar = True
        await stopped(client, "chat/completions", response_format={"type": "json_object"})
        assert trained(client) == ["{}<|im_end|>"]


@pytest.mark.parametrize(
    ("path", "choice", "tool"),
    [
        ("chat/completions", "required", TOOLS[0]),
        ("responses", "required", {"type": "function", "name": "look", "parameters": SCHEMA}),
        ("messages", {"type": "any"}, {"name": "look", "input_schema": SCHEMA}),
    ],
)
async def test_a_call_that_is_demanded_is_sampled_freely_and_counted_where_none_came(
    path: str, choice: Any, tool: Any
) -> None:
    async with serving("No.", call("look", at="a")) as client:
        for _ in range(2):
            await stopped(client, path, tool_choice=choice, tools=[tool])
        assert client.record.metrics()["unmet_tool_choice"] == 1
        assert client.record.metrics()["constrained_turns"] == 0


async def test_a_grammar_beside_tools_is_refused_for_no_call_could_be_made() -> None:
    async with serving("never") as client:
        client.engine.takes_grammar = True
        body = {"messages": [USER], "tools": TOOLS, "response_format": {"type": "json_object"}}
        status, _, data = await client.post("chat/completions", body)
        assert status == 400 and "tool_choice none" in json.loads(data)["error"]["message"]


async def test_a_schema_that_the_engine_can_not_compile_is_the_clients_fault() -> None:
    def answer(prompt: Any) -> Reply:
        if len(client.engine.calls) == 1:
            raise GrammarRefused("no such type: strin")
        return say("well")

    async with serving(answer) as client:
        client.engine.takes_grammar = True
        body = {"messages": [USER], **ASKED[0][2]}
        status, headers, data = await client.post("chat/completions", body)
        assert status == 400 and headers["x-should-retry"] == "false"
        assert "no such type" in json.loads(data)["error"]["message"]
        assert client.record.failure is None
        assert (await client.chat([USER]))["content"] == "well"


async def test_sglang_is_told_of_stop_strings_and_schemas_and_may_refuse_them() -> None:
    async def one(sent: Call) -> Turn:
        return Turn(encode("ok"), [-1.0, -1.0])

    async with FakeSGLang(one) as server:
        engine = SGLangEngine(server.url, sampling={"stop": "own"})
        policy = byte_policy(engine)
        async with serving("never") as client:
            client.record.policy = policy
            schema = {"response_format": {"type": "json_object"}}
            await stopped(client, "chat/completions", stop=["a", "b"], **schema)
            sent = server.calls[0].body["sampling_params"]
            assert sent["stop"] == ["own", "a", "b"] and sent["no_stop_trim"] is True
            assert json.loads(sent["json_schema"]) == {"type": "object"}
            await client.chat([USER])
            plain = server.calls[1].body["sampling_params"]
            assert plain["stop"] == "own" and "json_schema" not in plain
            server.misbehave = refused("Failed to compile json grammar: bad schema")
            status, _, data = await client.post(
                "chat/completions", {"messages": [USER, USER], **schema}
            )
            assert status == 400 and b"bad schema" in data and client.record.failure is None
            assert server.url.encode() not in data
        await engine.close()


@pytest.mark.parametrize(
    ("said", "status"), [("Aborted by AbortReq.", 410), ("the input is too long", 503)]
)
async def test_what_else_sglang_refuses_beside_a_schema_is_not_the_clients_fault(
    said: str, status: int
) -> None:
    async def one(sent: Call) -> Turn:
        raise AssertionError

    async with FakeSGLang(one) as server, serving("never") as client:
        engine = SGLangEngine(server.url)
        client.record.policy = byte_policy(engine)
        server.misbehave = refused(said)
        schema = {"response_format": {"type": "json_object"}}
        found, _, data = await client.post("chat/completions", {"messages": [USER], **schema})
        assert found == status and server.url.encode() not in data
        assert client.record.aborted is (status == 410)
        assert (client.record.failure is not None) is (status == 503)
        await engine.close()
