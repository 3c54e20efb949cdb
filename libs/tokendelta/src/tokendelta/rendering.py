"""Messages to text, through the tokenizer's own chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from tokendelta.errors import MessageError, TemplateError

Message = Mapping[str, Any]
Tool = Mapping[str, Any]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
ENVIRONMENT_ROLES = ROLES - {"assistant"}


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...

    def encode(self, text: str, **kwargs: Any) -> Any: ...

    def decode(self, token_ids: Any, **kwargs: Any) -> Any: ...


def check_messages(
    messages: Sequence[Message], where: str, turn: int = 0, roles: frozenset[str] = ROLES
) -> list[dict[str, Any]]:
    """The messages as a list of dicts, tool arguments decoded as templates expect them.

    Raises MessageError, with the index of the message, for an empty list, something that is no
    mapping, an unknown role, or content that is neither text, list nor None.
    """
    if not messages:
        raise MessageError(f"{where} {turn}: no messages; give at least one")
    checked = []
    for index, message in enumerate(messages):
        if (
            type(message) is dict
            and type(content := message.get("content")) is str
            and content.isascii()
            and message.get("role") in roles
            and "tool_calls" not in message
        ):
            checked.append(message)
        else:
            checked.append(_check_message(message, f"{where} {turn}: message {index}", roles))
    return checked


def _check_message(message: Any, where: str, roles: frozenset[str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise MessageError(f"{where} is {type(message).__name__}, not a mapping with a role")
    role = message.get("role")
    if not isinstance(role, str) or role not in roles:
        raise MessageError(f"{where} has role {role!r}; expected one of {sorted(roles)}")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list | tuple):
        raise MessageError(
            f"{where} ({role}) has content of type {type(content).__name__}; expected text, a list"
            " of parts, or None beside tool calls"
        )
    if content is None and role != "assistant":
        raise MessageError(f"{where} ({role}) has no content; give text, if only an empty one")
    if isinstance(content, str):
        check_encodable(content, f"{where} ({role})")
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list | tuple):
        raise MessageError(
            f"{where} ({role}) has tool_calls of type {type(calls).__name__}; expected a list"
        )
    return _with_decoded_arguments(message)


def check_encodable(text: str, where: str) -> None:
    """Raises MessageError for half of a character that takes two, which no tokenizer encodes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MessageError(
            f"{where} holds the lone surrogate {text[error.start]!a} at character {error.start};"
            " see where the text was cut, or how it was decoded"
        ) from error


def _with_decoded_arguments(message: Message) -> dict[str, Any]:
    """Decode JSON arguments of tool calls: the OpenAI API sends text, templates iterate."""
    calls = message.get("tool_calls")
    if not calls:
        return message if type(message) is dict else dict(message)
    decoded = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
            try:
                arguments = json.loads(function["arguments"])
            except (ValueError, RecursionError):
                arguments = function["arguments"]
            if isinstance(arguments, dict):
                call = {**call, "function": {**function, "arguments": arguments}}
        decoded.append(call)
    return {**message, "tool_calls": decoded}


class Renderer:
    """Renders conversations with one tokenizer and one set of template arguments."""

    __slots__ = ("tokenizer", "kwargs")

    def __init__(self, tokenizer: Tokenizer, kwargs: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.kwargs = dict(kwargs)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        generation: bool = False,
    ) -> str:
        """The conversation as text, with the generation prompt if `generation`.

        Raises TemplateError with the template's own message.
        """
        arguments = dict(self.kwargs)
        if tools:
            arguments["tools"] = list(tools)
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages),
                add_generation_prompt=generation,
                tokenize=False,
                **arguments,
            )
        except Exception as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise TemplateError(
                f"the chat template raised {type(error).__name__}: {error} (roles: {roles})"
            ) from error
        if not isinstance(text, str):
            raise TemplateError(
                f"apply_chat_template(tokenize=False) gave {type(text).__name__}, expected text"
            )
        check_encodable(text, "the rendered conversation")
        return text
