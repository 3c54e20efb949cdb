"""Items of any length: where the answers stand, what can be known before, what is refused."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from turnwise.config import ConfigError

from apps.evaluators.ruler_hqa.items import generated, read_items
from apps.evaluators.ruler_hqa.scoring import string_match
from apps.evaluators.ruler_hqa.tasks import TASKS, make_item
from apps.evaluators.ruler_hqa.world import RELATIONS, make_world

SIZE = 400


def rows(documents: int, count: int, **options: Any) -> list[Any]:
    given = {"seed": 3, "hops": 2, "order": "random", "size": SIZE, **options}
    return generated(documents, count, **given)


def context(row: Any) -> str:
    made = row.metadata["context"]
    return made if isinstance(made, str) else "".join(made())


def test_a_context_holds_its_documents_once_and_is_made_alike_each_time() -> None:
    for row in rows(40, 6):
        text = context(row)
        assert text == context(row)
        heads = [block.splitlines()[1] for block in text.strip().split("\n\n")]
        assert len(heads) == len(set(heads)) == 40
        assert text.startswith("Document 1:\n") and "\n\nDocument 40:\n" in text
        assert row.label["ground_truth"][0] in text


def test_the_questions_are_the_same_at_every_length() -> None:
    short, long = rows(20, 9), rows(200, 9)
    assert [row.prompt for row in short] == [row.prompt for row in long]
    assert [row.label["places"] for row in short] != [row.label["places"] for row in long]


def test_gold_documents_stand_everywhere_with_equal_chance() -> None:
    items = rows(100, 900)
    tenths = Counter(int(row.label["places"][0] * 10) for row in items)
    expected = len(items) / 10
    chi_square = sum((tenths[i] - expected) ** 2 / expected for i in range(10))
    assert chi_square < 27.9  # 9 degrees of freedom, p = 0.001


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_the_order_of_the_evidence_is_as_asked(order: str) -> None:
    for row in rows(60, 12, order=order, hops=3):
        places = row.label["places"]
        ups = [after > before for before, after in pairwise(places)]
        assert all(ups) if order == "forward" else not any(ups)


def test_each_hop_names_the_next_and_the_question_names_no_answer() -> None:
    world = make_world(3, SIZE)
    for seed in range(60):
        asked = world.question(seed, 3)
        names = [world.entities[place].name for place in asked.documents]
        assert names[0] in asked.text and asked.answer not in asked.text
        for place, name in zip(asked.documents, [*names[1:], asked.answer], strict=True):
            assert name in world.document(place)


def test_a_fact_is_told_once() -> None:
    world = make_world(3, SIZE)
    for entity in world.entities:
        assert len(entity.facts) == len(RELATIONS[entity.kind])
    assert len({entity.name for entity in world.entities}) == SIZE


@pytest.mark.parametrize("task", TASKS)
def test_every_reference_of_a_task_stands_in_its_text(task: str) -> None:
    item = make_item(task, 900, 5, 0)
    references = item.label["ground_truth"]
    assert string_match(context(item), references) == 1.0
    assert string_match("", references) == 0.0
    assert make_item(task, 900, 5, 0) == item != make_item(task, 900, 6, 0)


def test_the_common_words_are_the_ones_that_come_most_often() -> None:
    for task, skipped in (("cwe", 0), ("fwe", 1)):
        item = make_item(task, 1_500, 9, 0)
        words = Counter(word for word in context(item).split() if "-" in word or word == "...")
        most = [word for word, _ in words.most_common()][skipped:]
        references = item.label["ground_truth"]
        assert set(most[: len(references)]) == set(references)


def test_needles_stand_everywhere() -> None:
    tenths: Counter[int] = Counter()
    for number in range(600):
        item = make_item("niah_single_1", 99, number, number)
        lines = context(item).splitlines()
        at = next(i for i, line in enumerate(lines) if item.label["ground_truth"][0] in line)
        tenths[at // 10] += 1
    assert sum((tenths[i] - 60) ** 2 / 60 for i in range(10)) < 27.9


def write(folder: Path, items: Any) -> Path:
    path = folder / "eval_50.json"
    path.write_text(json.dumps(items), encoding="utf-8")
    return path


def test_published_items_are_rows_with_all_their_answers(tmp_path: Path) -> None:
    path = write(tmp_path, [{"input": "Who?", "context": "Ann.", "answers": ["Ann", "Anna"]}])
    (row,) = read_items(path, "50")
    assert (row.prompt, row.label["ground_truth"], row.id) == ("Who?", ["Ann", "Anna"], "50/0")


@pytest.mark.parametrize(
    "items",
    [
        {},
        [],
        [1],
        [{"input": "Who?", "context": "", "answers": ["a"]}],
        [{"input": "Who?", "context": [3, 1], "answers": ["a"]}],
        [{"input": "Who?", "context": "x", "answers": [1]}],
        [{"input": "Who?", "context": "x"}],
        [{"context": "x", "answers": ["a"]}],
    ],
)
def test_items_that_are_none_are_refused_by_their_place(tmp_path: Path, items: Any) -> None:
    with pytest.raises(ConfigError, match="eval_50.json"):
        read_items(write(tmp_path, items), "50")
