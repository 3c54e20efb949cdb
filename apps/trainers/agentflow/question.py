"""A task: a question and its answer, read from a data row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from turnwise.answers.labels import read_answer
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

    Its prompt is text, or messages of which the last one of the user counts. Its answer is what
    `turnwise.answers.labels` finds in its label.

    Raises:
        ConfigError: naming the row, there is no question, or no answer that anything could equal.
    """
    where = row.where or (f"row {row.id}" if row.id else "--prompt-data")
    text = row.prompt if isinstance(row.prompt, str) else _last_words(row.prompt)
    if not text.strip():
        raise ConfigError(
            f"{where}: the prompt has no question: {row.prompt!r:.80}; is --input-key right?"
        )
    return Question(text, read_answer(row.label, where))


def _last_words(prompt: object) -> str:
    """The content of the user's last message."""
    messages = prompt if isinstance(prompt, list | tuple) else ()
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""
