"""What is said and called in a conversation, and upstream's form of it in files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

Role = Literal["assistant", "user", "tool"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call.

    Attributes:
        name: The tool's, as the model gave it.
        arguments: JSON values by name.
        id: Joins the call to its result; unique within an episode. "" lets the environment choose.
        error: Why the call can't be made at all. Such a call reaches no tool; its result is
            `Error: ` and this text.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the conversation.

    Attributes:
        role: Who speaks; `tool` for the result of a call.
        content: The words, or the result; None for none.
        calls: What the speaker calls. Empty for a result.
        id, side, error: Of a result: which call's, who called, and whether the call failed.
    """

    role: Role
    content: str | None = None
    calls: tuple[Call, ...] = ()
    id: str = ""
    side: Literal["assistant", "user"] = "assistant"
    error: bool = False

    @property
    def has_text(self) -> bool:
        """Whether there is more than white space."""
        return self.content is not None and bool(self.content.strip())


def _read_call(name: object, arguments: object) -> Call:
    if not isinstance(name, str):
        return Call("", error=f"a tool's name must be a string, got {type(name).__name__}")
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return Call(name, error=f"the arguments of {name} are not JSON: {error}")
    elif arguments is None or isinstance(arguments, str):
        arguments = {}
    if not isinstance(arguments, Mapping):
        kind = type(arguments).__name__
        return Call(name, error=f"the arguments of {name} must be a JSON object, got {kind}")
    return Call(name, {str(key): value for key, value in arguments.items()})


def calls_from(
    pairs: Iterable[tuple[object, object]], errors: Sequence[str] = ()
) -> tuple[Call, ...]:
    """The calls of a model's turn. Never raises on what the model wrote.

    Args:
        pairs: (name, arguments) of each call in order; arguments as an object or JSON text.
        errors: What the parser says of calls that it could not read. If no call was read, the
            first becomes a call with that error, so that the model hears of it.
    """
    calls = tuple(_read_call(*pair) for pair in pairs)
    return (Call("", error=errors[0]),) if errors and not calls else calls


def _call_from_json(raw: Mapping[str, Any]) -> Call:
    return Call(raw["name"], raw["arguments"], raw.get("id") or "")


def message_from_json(raw: Mapping[str, Any]) -> Message:
    """A message as upstream's files hold it.

    Raises:
        ValueError: it is none of an assistant, a user or a tool.
    """
    role = raw.get("role")
    if role == "tool":
        return Message(
            "tool",
            raw.get("content"),
            id=raw["id"],
            side=raw.get("requestor") or "assistant",
            error=bool(raw.get("error")),
        )
    if role not in ("assistant", "user"):
        raise ValueError(f"a message's role must be assistant, user or tool, got {role!r}")
    calls = tuple(map(_call_from_json, raw.get("tool_calls") or ()))
    return Message(cast(Role, role), raw.get("content"), calls, side=role)


def messages_from_json(rows: Iterable[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Messages as upstream's files hold them, results of several calls as single ones.

    Raises:
        ValueError: a row is none.
    """
    messages: list[Message] = []
    for position, row in enumerate(rows):
        try:
            parts = row.get("tool_messages") or [row]
            messages.extend(message_from_json(part) for part in parts)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"message {position} is not one of τ²-bench's: {type(error).__name__}: {error}"
            ) from error
    return tuple(messages)


def messages_to_json(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Messages as upstream's files hold them.

    Calls that could not be made, and their results, are left out: they have touched nothing, and
    upstream has no form for them.
    """
    rows: list[dict[str, Any]] = []
    unmade: set[str] = set()
    for message in messages:
        unmade.update(call.id for call in message.calls if call.error is not None)
        if message.role == "tool" and message.id in unmade:
            continue
        row: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "tool":
            row |= {"id": message.id, "requestor": message.side, "error": message.error}
        else:
            calls = [
                {
                    "id": call.id,
                    "name": call.name,
                    "arguments": dict(call.arguments),
                    "requestor": message.role,
                }
                for call in message.calls
                if call.error is None
            ]
            row["tool_calls"] = calls or None
        rows.append({**row, "turn_idx": len(rows)})
    return rows
