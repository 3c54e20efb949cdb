"""From what the model wrote in one turn to actions of the environment.

| the turn holds                               | it becomes                                       |
|----------------------------------------------|--------------------------------------------------|
| text, no call                                | a message to the user                            |
| None, empty text, something not a string     | the message ""                                   |
| a call                                       | that call; the text beside it reaches nobody     |
| several calls                                | by the rule: `first` (default), `all` or `error` |
| a call of `respond`                          | a message, if `content` is a string              |
| a call whose name is not a string            | an action with an error                          |
| arguments that are no JSON object            | an action with an error                          |
| arguments None or ""                         | no arguments                                     |
| a call that the parser could not read        | an action with that error                        |

An unknown tool, missing and unexpected arguments are the environment's to answer. `first` is
what upstream and slime's example do; here the calls it drops are recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from taubench.task import RESPOND, Action

SeveralCalls = Literal["first", "all", "error"]


@dataclass(frozen=True, slots=True)
class DroppedCall:
    """A call that was not made.

    Attributes:
        name, arguments: As the model gave them.
        reason: `not first`, `several calls` or `episode over`.
    """

    name: Any
    arguments: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What one assistant turn amounts to.

    Attributes:
        actions: To be taken in order; at least one, and more than one only by the rule `all`.
        dropped: Calls that are not made.
        unheard: Text beside a call, which neither user nor tool gets to see; "" if none.
        unread: What the parser says of calls that it could not read and that got no answer.
    """

    actions: tuple[Action, ...]
    dropped: tuple[DroppedCall, ...] = ()
    unheard: str = ""
    unread: tuple[str, ...] = ()


def _action(name: object, arguments: object) -> Action:
    if not isinstance(name, str):
        return Action("", error=f"a tool's name must be a string, got {type(name).__name__}")
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return Action(name, error=f"the arguments of {name} are not JSON: {error}")
    elif arguments is None or isinstance(arguments, str):
        arguments = {}
    if not isinstance(arguments, Mapping):
        kind = type(arguments).__name__
        return Action(name, error=f"the arguments of {name} must be a JSON object, got {kind}")
    if name == RESPOND and not isinstance(arguments.get("content"), str):
        return Action(name, error=f"{RESPOND} needs content, a string")
    return Action(name, {str(key): value for key, value in arguments.items()})


def to_turn(
    content: object,
    calls: Sequence[tuple[object, object]] = (),
    *,
    errors: Sequence[str] = (),
    several: SeveralCalls = "first",
) -> Turn:
    """Reads one assistant turn. Never raises on what the model wrote.

    Args:
        content: The turn's text without its calls.
        calls: (name, arguments) of each call in order; arguments as an object or JSON text.
        errors: What the parser says of calls that it could not read. If no call was read, the
            first is the turn's action, so that the model hears of it; the others are `unread`.
        several: What to do with more than one call.
    """
    text = content if isinstance(content, str) else ""
    unread = tuple(errors)
    if not calls:
        if errors:
            return Turn((Action("", error=errors[0]),), unheard=text, unread=unread[1:])
        return Turn((Action.respond(text),))
    if several == "all" or len(calls) == 1:
        return Turn(tuple(_action(*call) for call in calls), (), text, unread)
    if several == "error":
        dropped = tuple(DroppedCall(*call, "several calls") for call in calls)
        message = f"one tool call at a time, got {len(calls)}; none was made"
        return Turn((Action("", error=message),), dropped, text, unread)
    dropped = tuple(DroppedCall(*call, "not first") for call in calls[1:])
    return Turn((_action(*calls[0]),), dropped, text, unread)
