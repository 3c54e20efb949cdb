"""A task: a question with its answer, its experts and what its asker prefers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnwise.answers.labels import read_answer
from turnwise.config import ConfigError
from turnwise.rows import Row
from turnwise.rows.checks import shown

from apps.trainers.toolorchestra.tables import (
    QUESTION_TOOLS,
    Budget,
    Expert,
    Preferences,
    read_experts,
    read_preferences,
    undashed,
)

__all__ = ["Defaults", "Task", "read_budget", "to_task"]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a row has that brings none of its own."""

    experts: tuple[Expert, ...] = ()
    preferences: Preferences = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task.

    Attributes:
        question: What is asked.
        answer: The truth that the judge compares with.
        experts: The table that the policy is shown, in its order.
        preferences: Weights by name, all that count.
        budget: For the utility; None where the row has none.
        eid: The documents that a search may see, by their name at the service; None for all.
    """

    question: str
    answer: str
    experts: tuple[Expert, ...]
    preferences: Preferences
    budget: Budget | None = None
    eid: str | None = None

    def of(self, tool: str) -> tuple[Expert, ...]:
        """The experts of a tool."""
        return tuple(expert for expert in self.experts if expert.tool == tool)


def to_task(row: Row, defaults: Defaults) -> Task:
    """The task of a data row: prompt and label, and of its metadata `experts`, `preferences`,
    `budget` and `eid`.

    Raises:
        ConfigError: naming the row: there is no question, no answer, nobody who could answer, or a
            table or weight that can't be.
    """
    where = row.where or f"row {row.id!r}"
    question = row.prompt if isinstance(row.prompt, str) else _last_of_user(row.prompt)
    if not question.strip():
        raise ConfigError(
            f"{where}: the prompt has no question, found {shown(row.prompt)}; --input-key names"
            " another column"
        )
    metadata = row.metadata
    experts = defaults.experts
    if metadata.get("experts") is not None:
        experts = read_experts(metadata["experts"], f"{where}: metadata.experts")
    _check_tools(experts, where)
    preferences = metadata.get("preferences")
    return Task(
        question=question,
        answer=read_answer(row.label, where),
        experts=experts,
        preferences=read_preferences(
            defaults.preferences if preferences is None else preferences,
            experts,
            f"{where}: metadata.preferences",
        ),
        budget=read_budget(metadata.get("budget"), where),
        eid=_eid(metadata.get("eid"), where),
    )


def _check_tools(experts: tuple[Expert, ...], where: str) -> None:
    foreign = [expert for expert in experts if expert.tool not in QUESTION_TOOLS]
    if foreign:
        raise ConfigError(
            f"{where}: metadata.experts: {foreign[0].role} belongs to {foreign[0].tool}; a question"
            f" has {', '.join(QUESTION_TOOLS)}"
        )
    if not any(expert.tool == "answer" for expert in experts):
        raise ConfigError(
            f"{where}: metadata.experts: nobody answers; give the row, or [[toolorchestra.table]],"
            " at least one expert of the tool answer"
        )


def read_budget(value: object, where: str) -> Budget | None:
    """The budget of a row; None where it has none.

    Raises:
        ConfigError: naming the row.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: metadata.budget: expected an object, found {shown(value)}")
    try:
        return Budget(**undashed(value))
    except ConfigError as error:
        raise ConfigError(f"{where}: metadata.budget.{error}") from None


def _eid(value: object, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    raise ConfigError(f"{where}: metadata.eid: expected a text, found {shown(value)}")


def _last_of_user(prompt: object) -> str:
    messages = prompt if isinstance(prompt, list | tuple) else ()
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""
