"""Short conversations that make a chat template show what it does.

Each history ends in an assistant turn whose last sampled text is `MARK`, so that everything after
`MARK` in a render is the template's own: stop token, separator, environment, generation prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

# What a turn is to a template: whether it calls tools, and whether its reasoning block is absent,
# present but empty ("blank"), or filled ("think").
TurnKind = Literal["text", "blank", "think", "call", "blank_call", "think_call"]
EnvKind = Literal["user", "tool", "mixed"]
Messages = list[dict[str, Any]]

TURN_KINDS: tuple[TurnKind, ...] = ("text", "blank", "think", "call", "blank_call", "think_call")
CALL_KINDS = frozenset(("call", "blank_call", "think_call"))
THINK_KINDS = frozenset(("think", "think_call"))
BLANK_KINDS = frozenset(("blank", "blank_call"))
ENV_KINDS: tuple[EnvKind, ...] = ("user", "tool", "mixed")

MARK = "Zq7mark7Zq"
REASON = "Rz9because9Rz"
FIRST, SECOND, THIRD = "Kx1one1Kx", "Kx2two2Kx", "Kx3tre3Kx"
CALL_IDS = ("abcdefgh1", "abcdefgh2", "abcdefgh3", "abcdefgh4")
SYSTEM = {"role": "system", "content": "You help customers."}

TOOLS: Messages = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Look up a {what}.",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string", "description": f"The {what}."}},
                "required": ["key"],
            },
        },
    }
    for name, what in (("find_order", "order"), ("find_user", "user"))
]

# Where a template does more than copy content, it does so for texts like these.
CONTENTS = (
    "plain words",
    "",
    " leading and trailing \n",
    "\n\nlines\n\n",
    '{"a": [1, "<b>", null], "é": "ü"}',
    "[1, 2]",
    "42",
    "{{ braces }} {% raw %}",
    "quotes \" and ' and \\ and \t",
    "zażółć 你好 🙂",
    "x & y < z > 'w'",
    "a\r\nb\u2028c",
)


def call(name: str, value: str, call_id: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": {"key": value}},
    }


def turn(
    kind: TurnKind,
    value: str,
    *,
    field: str = "reasoning_content",
    names: Sequence[str] = ("find_order",),
    ids: Sequence[str] = CALL_IDS,
    shows_calls: bool = True,
) -> dict[str, Any]:
    """An assistant message of the kind, `value` being the last text that is sampled.

    `field` is the key of the reasoning; `inline` puts it into the content between think tags. A
    template that does not show calls gets the value as content too.
    """
    content = "" if kind in CALL_KINDS and shows_calls else value
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if kind in THINK_KINDS:
        if field == "inline":
            message["content"] = f"<think>\n{REASON}\n</think>\n\n{content}"
        else:
            message[field] = REASON
    if kind in CALL_KINDS:
        calls = [call(name, value, call_id) for name, call_id in zip(names, ids, strict=False)]
        message["tool_calls"] = calls
    return message


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(text: str, index: int = 0, name: str = "find_order", call_id: str = "") -> dict[str, Any]:
    return {
        "role": "tool",
        "name": name,
        "tool_call_id": call_id or CALL_IDS[index],
        "content": text,
    }


@dataclass(frozen=True, slots=True)
class History:
    """Messages that end in the marked turn; `earlier_reasoning` since the last user message."""

    messages: Messages
    earlier_reasoning: bool = False


def histories(
    kind: TurnKind, field: str = "reasoning_content", shows_calls: bool = True
) -> list[History]:
    """Histories of different depth that all end in the same turn, the shortest first."""
    last = turn(kind, MARK, field=field, shows_calls=shows_calls)
    hello, where = user("Hello."), user("Where is it?")
    yes, thought = turn("text", "Yes?"), turn("think", "Yes?", field=field)
    called = [turn("call", "7"), tool("found")]
    thought_called = [turn("think_call", "7", field=field), tool("found")]
    # Templates look names up by the ids of calls, which may repeat and mostly do not.
    other = [turn("call", "7", ids=CALL_IDS[2:]), tool("found", 2)]
    thought_other = [turn("think_call", "7", field=field, ids=CALL_IDS[2:]), tool("found", 2)]
    return [
        History([hello, last]),
        History([SYSTEM, hello, last]),
        History([SYSTEM, hello, yes, where, last]),
        History([SYSTEM, hello, thought, where, last]),
        History([SYSTEM, hello, *called, last]),
        History([SYSTEM, hello, *called, yes, where, *called, last]),
        History([SYSTEM, hello, *thought_called, yes, where, last]),
        History([SYSTEM, hello, *thought_called, last], earlier_reasoning=True),
        History([hello, yes, where, *thought_called, *called, last], earlier_reasoning=True),
        History([SYSTEM, hello, *other, last]),
        History([SYSTEM, hello, *thought_other, last], earlier_reasoning=True),
    ]


def environments(kind: EnvKind) -> list[Messages]:
    """Environment groups of the kind."""
    if kind == "user":
        return [[user(FIRST)]]
    if kind == "tool":
        return [[tool(FIRST)], [tool(FIRST), tool(SECOND, 1)]]
    return [
        [tool(FIRST), user(SECOND)],
        [user(FIRST), user(SECOND)],
        [tool(FIRST), tool(SECOND, 1), user(THIRD)],
    ]
