"""A task: a question and its answer, read from a data row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.config import ConfigError
from turnwise.rows import Row


@dataclass(frozen=True, slots=True)
class Question:
    """One task.

    Attributes:
        text: What is asked.
        answer: The truth that the judge compares with.
    """

    text: str
    answer: str


def to_question(row: Row) -> Question:
    """The question of a data row.

    Its prompt is text, or messages of which the last one of the user counts. Its label is text or a
    number, a list of one of them, or an object that has it under `ground_truth`.

    Raises:
        ConfigError: naming the row, there is no question or no answer.
    """
    where = row.where or (f"row {row.id}" if row.id else "--prompt-data")
    text = row.prompt if isinstance(row.prompt, str) else _last_words(row.prompt)
    if not text.strip():
        raise ConfigError(
            f"{where}: the prompt has no question: {row.prompt!r:.80}; is --input-key right?"
        )
    answer = _answer(row.label)
    if not answer:
        raise ConfigError(
            f"{where}: {text[:80]!r} has no answer, its label is {row.label!r:.80}; is --label-key"
            " right?"
        )
    return Question(text, answer)


def _last_words(prompt: object) -> str:
    """The content of the user's last message."""
    messages = prompt if isinstance(prompt, list | tuple) else ()
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""


def _answer(label: Any) -> str:
    if isinstance(label, Mapping):
        label = label.get("ground_truth")
    if isinstance(label, list | tuple) and len(label) == 1:
        label = label[0]
    if isinstance(label, bool) or not isinstance(label, str | int | float):
        return ""
    return str(label).strip()
