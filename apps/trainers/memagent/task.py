"""A task: a problem, a long text and the answers, read from a data row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.answers import normalise
from turnwise.config import ConfigError
from turnwise.rows import Row
from turnwise.rows.checks import shown

CHARACTERS_A_TOKEN = 4.0
Blocks = Callable[[], Iterable[str]]
"""Makes the text anew, in pieces that are encoded apart."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    Attributes:
        problem: What is asked.
        context: The text, or what makes it piece by piece.
        answers: What counts as right; at least one, none of them empty once normalised.
        where: For errors.
        length: Of the text, in tokens, about; what orders episodes that wait to be played.
        facts: What the text says that the answer follows from, for credit to turns; may be none.
    """

    problem: str
    context: str | Blocks
    answers: tuple[str, ...]
    where: str
    length: float = 0.0
    facts: tuple[str, ...] = ()

    def held(self, memory: str) -> float:
        """The share of the facts, or of the one answer, whose words a memory holds in a row."""
        words = f" {normalise(memory)} "
        if self.facts:
            return sum(f" {normalise(one)} " in words for one in self.facts) / len(self.facts)
        return float(any(f" {normalise(one)} " in words for one in self.answers))


def to_task(row: Row) -> Task:
    """The task of a data row.

    The problem is the prompt's text, or the last message of its user. The label is an answer, a
    list of them, or `{"ground_truth": ...}`. The text is the metadata's `context`; its
    `facts` may list what the answer follows from, and its `length` say how many tokens the text
    has, which is else guessed.

    Raises:
        ConfigError: naming the row, what is missing or can't be graded.
    """
    where = row.where or f"row {row.id!r}"
    problem = row.prompt if isinstance(row.prompt, str) else _last_of_user(row.prompt)
    if not problem.strip():
        raise ConfigError(
            f"{where}: the prompt has no problem, found {shown(row.prompt)}; --input-key names"
            " another column"
        )
    context = row.metadata.get("context")
    if not callable(context) and not (isinstance(context, str) and context.strip()):
        raise ConfigError(
            f"{where}: metadata.context: expected the text to read, found {shown(context)};"
            " apps/trainers/memagent/data:prepare writes such rows"
        )
    # A table has null where a row has none.
    facts = row.metadata.get("facts")
    facts = () if facts is None else facts
    if not isinstance(facts, list | tuple) or not all(
        isinstance(fact, str) and normalise(fact) for fact in facts
    ):
        raise ConfigError(f"{where}: metadata.facts: expected texts, found {shown(facts)}")
    guessed = len(context) / CHARACTERS_A_TOKEN if isinstance(context, str) else 0.0
    length = row.metadata.get("length")
    length = guessed if length is None else length
    if not isinstance(length, int | float) or isinstance(length, bool):
        raise ConfigError(f"{where}: metadata.length: expected a number, found {shown(length)}")
    return Task(
        problem, context, read_answers(row.label, where), where, float(length), tuple(facts)
    )


def read_answers(label: Any, where: str) -> tuple[str, ...]:
    """The answers of a label; see `to_task`.

    Raises:
        ConfigError: naming `where`.
    """
    if isinstance(label, Mapping):
        label = label.get("ground_truth")
    listed = label if isinstance(label, list | tuple) else [label]
    answers = tuple(
        str(one) for one in listed if isinstance(one, str | int) and not isinstance(one, bool)
    )
    if not answers or len(answers) < len(listed):
        raise ConfigError(
            f"{where}: the label is no answer, found {shown(label)}; write a text or a list of them"
        )
    for answer in answers:
        if not normalise(answer):
            raise ConfigError(
                f"{where}: the answer {answer!r} is nothing but punctuation and articles, so that"
                " nothing could be compared with it"
            )
    return answers


def _last_of_user(prompt: object) -> str:
    messages = prompt if isinstance(prompt, list | tuple) else ()
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""
