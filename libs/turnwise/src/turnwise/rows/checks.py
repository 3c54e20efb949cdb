"""What a row's texts, messages and values must be like; the errors name place, field and remedy."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.config import ConfigError

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPES = {"\b": "b", "\f": "f", "\t": "t", "\r": "r", "\n": "n"}
_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
    # What is left of \text, \right and \nabla; a tab or a line break alone is text.
    r"|\t(?:ext(?:bf|it|rm)?\{|imes\b|heta\b|frac\{|binom\{|riangle\b|au\b)"
    r"|\r(?:ight[)\]}|.\\]|ho\b|angle\b|floor\b|ceil\b)"
    r"|\n(?:abla\b|otin\b|subseteq\b)"
)


def check_prompt(value: Any, where: str, key: str) -> str | Sequence[Mapping[str, Any]]:
    """The prompt, as it is.

    Raises:
        ConfigError: naming `where`, the key and what to do: it is no text and no list of messages,
            is empty, is a chat written as text, or holds what `check_text` refuses.
    """
    if isinstance(value, str):
        if not value.strip():
            raise ConfigError(f"{where}: {key}: is empty; a row needs something to ask")
        if _is_chat_as_text(value):
            raise ConfigError(
                f"{where}: {key}: is a chat written as a JSON string, which a model would be shown"
                f" as it stands; write the list itself: row[{key!r}] = json.loads(row[{key!r}])"
            )
        check_text(value, where, key)
        return value
    if not isinstance(value, list) or not value:
        raise ConfigError(
            f"{where}: {key}: expected a text or a list of messages, found {shown(value)};"
            " --input-key names another column"
        )
    for number, message in enumerate(value):
        _check_message(message, where, f"{key}[{number}]")
    return value


def check_text(text: str, where: str, field: str) -> None:
    """
    Raises:
        ConfigError: naming `where` and the field: the text holds half of a character, or a control
            character such as a lost backslash leaves.
    """
    check_characters(text, where, field)
    if found := _CONTROL.search(text):
        control = found[0][0]
        around = text[max(0, found.start() - 10) : found.start() + 10]
        remedy = "remove it"
        if control in _ESCAPES:
            meant = f"\\{_ESCAPES[control]}"
            remedy = (
                f"a backslash was lost: in JSON {meant} is written \\{meant}, so write the file"
                " with a JSON library or double its backslashes"
            )
        raise ConfigError(
            f"{where}: {field}: holds the control character {control!a} in {around!a}; {remedy}"
        )


def check_characters(text: str, where: str, field: str) -> None:
    """
    Raises:
        ConfigError: naming `where` and the field: the text holds half of a character.
    """
    if half := _SURROGATE.search(text):
        raise ConfigError(
            f"{where}: {field}: holds {half[0]!a}, half of a character, at position"
            f" {half.start()}; no tokenizer encodes it: write the whole character, or remove it"
        )


def check_leaf(found: Any, where: str, field: str) -> None:
    """
    Raises:
        ConfigError: naming `where` and the field: what was found is no JSON value.
    """
    if not isinstance(found, str | int | float | None):
        raise ConfigError(
            f"{where}: {field}: expected a JSON value, found {type(found).__name__}; write it as"
            " text or as a number"
        )


def check_label(value: Any, where: str, key: str) -> None:
    """
    Raises:
        ConfigError: naming `where` and the field: a label, or what it holds, is no JSON value, is
            not finite, or is a text that `check_text` refuses.
    """
    for field, found in leaves(value, key):
        check_leaf(found, where, field)
        if isinstance(found, float) and not math.isfinite(found):
            raise ConfigError(
                f"{where}: {field}: is {found}, which nothing equals; write the answer, a large"
                " number as text, or leave the row out"
            )
        if isinstance(found, str):
            check_text(found, where, field)


def shown(value: Any) -> str:
    """The begin of a value, for a message."""
    try:
        return f"{value!r:.60}"
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} too deep or too long to show"


def leaves(value: Any, field: str) -> Iterator[tuple[str, Any]]:
    """What is no object and no list, by its path."""
    stack = [(field, value)]
    while stack:
        place, found = stack.pop()
        if isinstance(found, Mapping):
            stack += [(f"{place}.{key}", item) for key, item in reversed(list(found.items()))]
        elif isinstance(found, list):
            stack += [(f"{place}[{n}]", item) for n, item in reversed(list(enumerate(found)))]
        else:
            yield place, found


def _check_message(message: Any, where: str, field: str) -> None:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ConfigError(
            f"{where}: {field}: expected a message with role and content, found {shown(message)};"
            ' write {"role": "user", "content": ...}'
        )
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise ConfigError(f"{where}: {field}: has no content; found {shown(message)}")
    if not isinstance(content, str | list | None):
        raise ConfigError(
            f"{where}: {field}.content: expected a text or a list of parts, found {shown(content)}"
        )
    for place, found in leaves(content, f"{field}.content"):
        if isinstance(found, str):
            check_text(found, where, place)


def _is_chat_as_text(text: str) -> bool:
    if not text.lstrip().startswith(("[", "{")):
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    messages = value if isinstance(value, list) else value.get("messages", [value])
    return (
        bool(messages)
        and isinstance(messages, list)
        and all(isinstance(one, dict) and "role" in one and "content" in one for one in messages)
    )
