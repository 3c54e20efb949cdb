"""Scripts for both sides of a task: the reference solution, and what goes wrong with it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from taubench.tau2 import ReferenceAction, Tau2Task, supports_solo, tool_schemas, user_tool_schemas

from .upstream import Move, Script

KINDS = (
    "gold",
    "silent",
    "dropped",
    "foreign",
    "shuffled",
    "bad arguments",
    "early end",
    "limits",
    "several calls",
    "nothing",
)
Named = tuple[str, str, Mapping[str, Any]]
"""Side, tool and arguments of a call."""


def reference_calls(task: Tau2Task) -> list[Named]:
    actions: Sequence[ReferenceAction] = (task.criteria.actions if task.criteria else None) or ()
    return [(action.side, action.name, dict(action.arguments)) for action in actions]


def spoil(draw: random.Random, call: Named) -> Named:
    """A call with something wrong in its name, arguments or side."""
    side, name, arguments = call
    changed = dict(arguments)
    kind = draw.randrange(8)
    if kind == 0 and changed:
        changed.pop(draw.choice(list(changed)))
    elif kind == 1:
        changed["unheard_of"] = 1
    elif kind == 2 and changed:
        key = draw.choice(list(changed))
        changed[key] = draw.choice([None, 7, -1.5, True, "", [], {}, ["x"], {"a": [1]}, "é"])
    elif kind == 3:
        name = draw.choice([f"{name}_", "", "respond", "done", "_get_user", "db"])
    elif kind == 4:
        changed[draw.choice(["self", "tool_name", "requestor"])] = "user"
    elif kind == 5:
        side = "user" if side == "assistant" else "assistant"
    elif kind == 6 and changed:
        key = draw.choice(list(changed))
        value = changed[key]
        if isinstance(value, list):
            changed[key] = [*value, *value]
        elif isinstance(value, str):
            changed[key] = value.swapcase()
        elif isinstance(value, int | float):
            changed[key] = value + 1
    else:
        name, changed = "calculate", {"expression": draw.choice(EXPRESSIONS)}
    return side, name, changed


EXPRESSIONS = ("1 + 2 * 3", "(10.5 - 3) / 2", "1 / 0", "2 +", "import os", "((1)", "1.5.2", " 7")


def random_calls(draw: random.Random, task: Tau2Task, count: int) -> list[Named]:
    """Calls of any tools with arguments by their schema, from values that occur in the domain."""
    tools = [("assistant", one) for one in tool_schemas(task.domain, task.task_set)]
    tools += [("user", one) for one in user_tool_schemas(task.domain)]
    values = VALUES[task.domain.removesuffix("-workflow")]
    calls: list[Named] = []
    for _ in range(count):
        side, schema = draw.choice(tools)
        function = schema["function"]
        wanted = function["parameters"].get("properties", {})
        arguments = {name: draw.choice(values) for name in wanted}
        calls.append((side, function["name"], arguments))
    return calls


VALUES: Mapping[str, Sequence[Any]] = {
    "mock": ("user_1", "task_1", "completed", "A title"),
    "airline": ("HAT001", "2024-05-16", "SFO", "JFK", "emma_kim_9957", "EHGLP3", 1, "economy"),
    "retail": ("#W2378156", "yusuf_rossi_9620", "credit_card_9513926", ["1151293680"], "19122"),
    "telecom": (
        "C1001",
        "L1002",
        "L1001",
        "B1001",
        2.0,
        "messaging",
        "sms",
        "4g_5g_preferred",
        True,
    ),
}


def vary(kind: str, draw: random.Random, calls: list[Named], task: Tau2Task) -> list[Named]:
    match kind:
        case "dropped" if calls:
            calls.pop(draw.randrange(len(calls)))
        case "foreign":
            for call in random_calls(draw, task, 4):
                calls.insert(draw.randint(0, len(calls)), call)
        case "shuffled":
            draw.shuffle(calls)
        case "bad arguments":
            calls = [spoil(draw, call) if draw.random() < 0.6 else call for call in calls]
            calls += [spoil(draw, call) for call in random_calls(draw, task, 3)]
        case "early end" if calls:
            calls = calls[: draw.randrange(len(calls))]
        case "nothing":
            return []
    return calls


def plan(task: Tau2Task, kind: str, seed: int, *, solo: bool = False) -> Script:
    """A script of a kind for a task. `solo` has the agent make all calls."""
    draw = random.Random(f"{task.key}/{kind}/{seed}")
    calls = vary(kind, draw, reference_calls(task), task)
    said = [] if kind in ("silent", "nothing") else list(task.communicate)
    script = Script([], [], solo=solo and supports_solo(task))
    if kind == "limits":
        script.max_steps = draw.choice([1, 2, 5, 8, 13])
        script.max_errors = draw.choice([1, 2])
        calls += [spoil(draw, call) for call in random_calls(draw, task, 4)]
    agent: list[Move] = []
    user: list[Move] = []
    count = len(task.criteria.nl_assertions) if task.criteria else 0
    script.verdicts = [draw.random() < 0.8 or kind == "gold" for _ in range(count)]
    if script.solo:
        script.agent = [Move(None, ((name, arguments),)) for _, name, arguments in calls]
        return script
    _weave(draw, kind, calls, said, agent, user)
    script.agent, script.user = agent, user
    return script


def _weave(
    draw: random.Random,
    kind: str,
    calls: list[Named],
    said: list[str],
    agent: list[Move],
    user: list[Move],
) -> None:
    """Orders the moves so that each side calls while it is its turn."""
    turn = "user"
    while calls:
        side = calls[0][0]
        if turn != side:
            moves = agent if turn == "assistant" else user
            moves.append(Move(_words(draw, said if turn == "assistant" else [])))
            turn = side
        size = draw.randint(2, 3) if kind == "several calls" else 1
        batch = [call for call in calls[:size] if call[0] == side]
        del calls[: len(batch)]
        beside = draw.choice([None, "", "I look.", *said]) if draw.random() < 0.3 else None
        moves = agent if side == "assistant" else user
        moves.append(Move(beside, tuple((name, arguments) for _, name, arguments in batch)))
    if turn == "user":
        user.append(Move("Are we done?"))
    agent.append(Move(" and ".join(said) if said else "Done."))
    user.append(Move(draw.choice(["###STOP###", "Thanks ###TRANSFER###", "###OUT-OF-SCOPE### hm"])))


def _words(draw: random.Random, said: list[str]) -> str:
    if said and draw.random() < 0.5:
        return f"It is {said.pop()}, I think."
    return draw.choice(["One moment.", "Please go on.", "Hello, yes."])
