"""Short conversations that make a chat template show what it does.

Each history ends in an assistant turn whose last sampled text is `MARK`, so that everything after
`MARK` in a render is the template's own: stop token, separator, environment, generation prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

TurnKind = Literal["text", "think", "call", "think_call"]
EnvKind = Literal["user", "tool", "mixed"]

MARK = "Zq7mark7Zq"
FIRST, SECOND, THIRD = "Kx1one1Kx", "Kx2two2Kx", "Kx3tre3Kx"

TOOLS: list[dict[str, Any]] = [
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

CALL_IDS = ("abcdefgh1", "abcdefgh2", "abcdefgh3", "abcdefgh4")


def calls(names: Sequence[str], value: str, ids: Sequence[str] = CALL_IDS) -> list[dict[str, Any]]:
    return [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": {"key": value}},
        }
        for name, call_id in zip(names, ids, strict=False)
    ]


def turn(
    kind: TurnKind,
    value: str,
    names: Sequence[str] = ("find_order",),
    ids: Sequence[str] = CALL_IDS,
) -> dict[str, Any]:
    """An assistant message of the kind, `value` being the last text that is sampled."""
    message: dict[str, Any] = {"role": "assistant", "content": value}
    if kind in ("call", "think_call"):
        message = {"role": "assistant", "content": "", "tool_calls": calls(names, value, ids)}
    if kind in ("think", "think_call"):
        message["reasoning_content"] = "Let me see."
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


SYSTEM = {"role": "system", "content": "You help customers."}


def histories(kind: TurnKind, names: Sequence[str] = ("find_order",)) -> list[list[dict[str, Any]]]:
    """Histories of different depth that all end in the same assistant turn."""
    last = turn(kind, MARK, names)
    return [
        [user("Hello."), last],
        [SYSTEM, user("Hello."), last],
        [SYSTEM, user("Hello."), turn("text", "Yes?"), user("Where is it?"), last],
        [SYSTEM, user("Where?"), turn("think", "Yes?"), user("Where is it?"), last],
        [SYSTEM, user("Where?"), turn("call", "7"), tool("found"), last],
        [SYSTEM, user("Where?"), turn("think_call", "7"), tool("found"), last],
        [
            SYSTEM,
            user("Where?"),
            turn("call", "7"),
            tool("found"),
            turn("text", "Here."),
            user("And the other?"),
            last,
        ],
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
    "<think>\nx\n</think>\n\ny",
    "<tool_response>\nz\n</tool_response>",
    "/no_think",
)


def environment(kind: EnvKind) -> list[dict[str, Any]]:
    """An environment group of the kind, as an example."""
    if kind == "user":
        return [user(FIRST)]
    if kind == "tool":
        return [tool(FIRST)]
    return [tool(FIRST), user(SECOND)]
