"""A task: a question and its answer, read from a data row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from turnwise.answers.labels import read_answer
from turnwise.config import ConfigError
from turnwise.rows import Row
from turnwise.rows.checks import shown


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
    """The question of a data row: its text, or its user's last message, and its label's answer.

    Raises:
        ConfigError: naming the row, there is no question or no answer (`turnwise.answers.labels`).
    """
    where = row.where or f"row {row.id!r}"
    text = row.prompt if isinstance(row.prompt, str) else _last_of_user(row.prompt)
    if not text.strip():
        raise ConfigError(
            f"{where}: the prompt has no question, found {shown(row.prompt)}; --input-key names"
            " another column"
        )
    return Question(text, read_answer(row.label, where))


def _last_of_user(prompt: object) -> str:
    """The content of the user's last message."""
    messages = prompt if isinstance(prompt, list | tuple) else ()
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""
