"""What is remembered of bodies changes nothing of what they are read as."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import tokendelta
from turnwise.gateway import chat, messages, responses
from turnwise.gateway.bodies import MAX_BYTES, Bodies
from turnwise.gateway.requests import Refusal
from turnwise.testing import byte_tokenizer

PROFILE = tokendelta.Profile.from_tokenizer(byte_tokenizer())
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ITEMS: dict[Any, list[Any]] = {
    chat: [
        {"role": "user", "content": "hi"}, {"role": "user", "content": "halló\ud800"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": {
            "name": "other", "arguments": "[]"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        {"role": "tool", "tool_call_id": "d", "content": "]"},
    ],
    messages: [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "x, y"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look",
                                           "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"},
                                     {"type": "text", "text": "["}]},
    ],
    responses: [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "reasoning", "summary": []}, {"type": "nothing"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x", "role": "assistant"},
    ],
}  # fmt: skip
ODD: list[Any] = [
    None,
    1,
    "x",
    {},
    [],
    {"role": 1},
    {"type": None},
    {"role": "user", "content": [1]},
]
TOOLS = [[], [{"type": "function", "function": {"name": "look"}, "name": "look"}], None]


def outcome(dialect: Any, data: bytes, bodies: Bodies, *, fresh: bool) -> Any:
    """What a body is read as, or why not."""
    try:
        body = json.loads(data) if fresh else bodies.fields(data)
        found = dialect.read(body, bodies)
    except Refusal as error:
        return error.status, str(error), error.field
    return found.messages, found.tools, found.ignored, found.key


@pytest.mark.parametrize("dialect", ITEMS)
def test_a_body_is_read_as_if_it_were_the_first(dialect: Any) -> None:
    draw = random.Random(dialect.NAME)
    field = "input" if dialect is responses else "messages"
    for _ in range(30):
        bodies = Bodies(tokendelta.Tree(PROFILE))
        histories: list[list[Any]] = [[]]
        for _ in range(12):
            history = [*draw.choice(histories)]
            if history and draw.random() < 0.2:
                history[draw.randrange(len(history))] = draw.choice(ITEMS[dialect])
            more = [draw.choice(ITEMS[dialect]) for _ in range(draw.randrange(1, 4))]
            if draw.random() < 0.05:
                more.append(draw.choice(ODD))
            history += more
            histories.append(history)
            body: dict[str, Any] = {"model": "m", field: history, "tools": draw.choice(TOOLS)}
            if draw.random() < 0.05:
                body[field] = draw.choice([[], None, "hi", {}, 1])
            data = json.dumps(body, indent=draw.choice([None, None, None, 1])).encode()
            told = outcome(dialect, data, bodies, fresh=False)
            assert told == outcome(dialect, data, Bodies(), fresh=True), data


def test_a_message_that_comes_again_is_the_same_object() -> None:
    bodies = Bodies(tokendelta.Tree(PROFILE))
    history, read = [*ITEMS[chat][:1], ITEMS[chat][2], ITEMS[chat][4]], []
    for sent in (history, [*history, ITEMS[chat][0]], history[:2]):
        data = json.dumps({"messages": sent}).encode()
        read.append(chat.read(bodies.fields(data), bodies).messages)
    assert [one is other for one, other in zip(read[0], read[1], strict=False)] == [True] * 3
    assert [one is other for one, other in zip(read[0], read[2], strict=False)] == [True] * 2


def test_what_one_dialect_read_is_read_again_by_another() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    for item in (*ITEMS[chat], *ITEMS[messages], {"role": "assistant", "content": [thought]}):
        data = json.dumps({"messages": [item, item]}).encode()
        bodies = Bodies(tokendelta.Tree(PROFILE))
        for dialect in (chat, messages, chat):
            told = outcome(dialect, data, bodies, fresh=False)
            assert told == outcome(dialect, data, Bodies(), fresh=True), (dialect, item)


def test_what_is_remembered_is_bounded() -> None:
    bodies = Bodies(tokendelta.Tree(PROFILE))
    for number in range(9):
        said = {"role": "user", "content": f"{number}" * (MAX_BYTES // 4)}
        chat.read(bodies.fields(json.dumps({"messages": [said]}).encode()), bodies)
        assert sum(map(len, bodies._messages)) < 1.6 * MAX_BYTES


def test_the_bound_of_a_history_counts_what_is_remembered_of_it() -> None:
    bodies = Bodies(tokendelta.Tree(PROFILE))
    one = {"role": "user", "content": "x"}
    for count, fits in ((4000, True), (4096, True), (4097, False)):
        data = json.dumps({"messages": [one] * count}).encode()
        told = outcome(chat, data, bodies, fresh=False)
        assert (len(told[0]) == count) if fits else (told[0] == 400 and "4097" in told[1])
