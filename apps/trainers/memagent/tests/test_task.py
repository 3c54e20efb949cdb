"""A data row is a task, or is refused by its place."""

from __future__ import annotations

from typing import Any

import pytest
from turnwise.config import ConfigError
from turnwise.rows import Row

from apps.trainers.memagent.method import METHOD
from apps.trainers.memagent.reward import is_right, read_answer
from apps.trainers.memagent.task import to_task

WHERE = "train.jsonl:7"


def row(**changes: Any) -> Row:
    fields: dict[str, Any] = {"prompt": "Who?", "label": "Ann", "metadata": {"context": "Ann did."}}
    return Row(**{**fields, **changes}, where=WHERE)


@pytest.mark.parametrize(
    ("label", "answers"),
    [
        ("Ann", ("Ann",)),
        (["Ann", "Anna"], ("Ann", "Anna")),
        ({"style": "rule", "ground_truth": ["Ann"]}, ("Ann",)),
        (1984, ("1984",)),
    ],
)
def test_labels_as_data_sets_write_them_are_answers(label: Any, answers: Any) -> None:
    assert to_task(row(label=label)).answers == answers


@pytest.mark.parametrize(
    "changes",
    [
        {"label": None},
        {"label": []},
        {"label": ["Ann", None]},
        {"label": True},
        {"label": "the ..."},
        {"label": {"ground_truth": None}},
        {"prompt": " "},
        {"prompt": [{"role": "assistant", "content": "x"}]},
        {"metadata": {}},
        {"metadata": {"context": "  "}},
        {"metadata": {"context": ["Ann"]}},
        {"metadata": {"context": "Ann.", "length": "9"}},
        {"metadata": {"context": "Ann.", "facts": "Ann"}},
        {"metadata": {"context": "Ann.", "facts": ["the"]}},
    ],
)
def test_a_row_that_is_no_task_is_refused_by_its_place(changes: Any) -> None:
    with pytest.raises(ConfigError, match=WHERE):
        to_task(row(**changes))


def test_facts_and_length_may_be_null_as_a_table_has_them() -> None:
    task = to_task(row(metadata={"context": "Ann did.", "facts": None, "length": None}))
    assert (task.facts, task.length) == ((), 2.0)


def test_texts_with_more_sections_are_more_work() -> None:
    method = METHOD(METHOD.Options(chunk_tokens=10))
    said = [
        to_task(row(metadata={"context": "x" * 400})),
        to_task(row(metadata={"context": lambda: ["x"], "length": 1_000})),
        to_task(row(metadata={"context": lambda: ["x"]})),
    ]
    assert [method.work(task) for task in said] == [10, 100, 0]


def test_the_last_message_of_the_user_is_the_problem() -> None:
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "Who?"}]
    assert to_task(row(prompt=prompt)).problem == "Who?"


@pytest.mark.parametrize("text", ["", "the", r"\boxed{}", r"\boxed{The}", "no box"])
def test_an_empty_answer_is_wrong(text: str) -> None:
    assert not is_right(read_answer(text, "boxed"), ["The Hague"])


def test_articles_and_punctuation_are_no_part_of_an_answer() -> None:
    text = r"<think>\boxed{x}</think>So: \boxed{The  Hague.}"
    assert is_right(read_answer(text, "boxed"), ["hague"])
    assert is_right(read_answer(" The Hague.\n", "whole"), ["hague"])
