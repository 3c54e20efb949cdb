"""Generated questions and tables: that answers are right, that nothing leaks, who is unseen."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.config import ConfigError

from apps.trainers.toolorchestra.laptop.demonstrations import demonstrated
from apps.trainers.toolorchestra.laptop.rosters import budget, make_roster
from apps.trainers.toolorchestra.laptop.tasks import COST_WEIGHTS, claim, rows, splits
from apps.trainers.toolorchestra.laptop.world import (
    FACTS,
    GRADES,
    SUBJECTS,
    TOWNS,
    make_problem,
    read_problem,
    split_of,
)
from apps.trainers.toolorchestra.task import Defaults, Task, to_task


def tasks(split: str, per_cell: int = 4) -> list[Task]:
    return [to_task(row, Defaults()) for row in rows(split, eval_per_cell=per_cell)]


@pytest.mark.parametrize(
    ("text", "subject", "grade", "answer"),
    [
        ("What is 7 * 8 + 5?", "maths", 1, "61"),
        ("What is 47 * 83 - 29?", "maths", 2, "3872"),
        ("What is 4837 * 2931 + 1806?", "maths", 3, "14179053"),
        ("How many letters has lantern?", "words", 1, "7"),
        ("How many vowels has lantern?", "words", 2, "2"),
        ("How many different letters has lantern?", "words", 3, "6"),
    ],
)
def test_a_question_is_answered_from_its_text(
    text: str, subject: str, grade: int, answer: str
) -> None:
    found = read_problem(text)
    assert found is not None
    assert (found.subject, found.grade, found.answer) == (subject, grade, answer)


def test_a_town_has_one_of_everything_and_a_question_for_each() -> None:
    assert len(FACTS) == 3 * len(TOWNS) == 3 * len(set(TOWNS))
    found = read_problem(f"Who is the mayor of {TOWNS[5]}?")
    assert found is not None and found.answer == FACTS["mayor", TOWNS[5]]
    assert found.about == f"mayor of {TOWNS[5]}"


@given(st.text())
def test_any_text_is_a_question_of_this_world_or_none(text: str) -> None:
    found = read_problem(text)
    assert found is None or found.text == text


@given(st.sampled_from(SUBJECTS), st.sampled_from(GRADES), st.integers(0, 2**32))
def test_what_is_made_is_read_back_with_its_cell(subject: Any, grade: int, seed: int) -> None:
    made = make_problem(subject, grade, random.Random(seed))
    assert (made.subject, made.grade) == (subject, grade)


def test_no_split_has_a_question_of_another() -> None:
    asked = {split: {task.question for task in tasks(split)} for split in splits()}
    assert asked["unseen"] == asked["held-out"]
    for one, other in (("train", "tune"), ("train", "held-out"), ("tune", "held-out")):
        assert not asked[one] & asked[other]
    shown = {str(row.prompt) for row in demonstrated(1, 400)}
    assert {split_of(text) for text in shown} == {"train"}


def test_every_cell_is_there_with_every_weight_of_cost() -> None:
    made = rows("held-out", eval_per_cell=4)
    cells = Counter(row.id.rpartition("/")[0] for row in made)
    assert len(cells) == len(SUBJECTS) * len(GRADES) * len(COST_WEIGHTS)
    assert set(cells.values()) == {4} and len({row.id for row in made}) == len(made)
    assert len({task.question for task in tasks("train")}) == len(tasks("train")) > 400


@given(st.sampled_from(["seen", "unseen"]), st.integers(0, 2**32))
def test_a_table_goes_from_one_who_knows_little_to_one_who_knows_all_and_prices_rise(
    side: Any, seed: int
) -> None:
    experts = make_roster(side, random.Random(seed))
    search, reason, *answerers = experts
    assert (search.role, search.tool) == ("s1", "search")
    assert (reason.role, reason.tool) == ("r1", "enhance_reasoning")
    assert [one.role for one in answerers] in (["a1", "a2", "a3"], ["a1", "a2", "a3", "a4"])
    assert {one.tool for one in answerers} == {"answer"}
    assert (answerers[0].ability, answerers[-1].ability) == ("little", "all")
    assert len({one.ability for one in answerers}) == len(answerers)
    prices = [one.read_price for one in answerers]
    assert prices == sorted(set(prices))
    assert budget(experts) == answerers[-1].price(80, 4)


@given(st.integers(0, 2**32))
def test_the_table_tells_who_is_good_at_what(seed: int) -> None:
    for expert in make_roster("unseen", random.Random(seed))[2:]:
        grades = dict(zip(SUBJECTS, expert.model.split("-")[1:], strict=True))
        able = [subject for subject, grade in grades.items() if grade == "3"]
        best = "all" if set(grades.values()) == {"2"} else "little"
        assert expert.ability == (", ".join(able) or best)


def test_an_unseen_expert_shares_neither_prices_nor_a_specialists_ability_with_a_seen_one() -> None:
    seen = [task.experts for split in ("train", "tune", "held-out") for task in tasks(split)]
    seen += [to_task(row, Defaults()).experts for row in demonstrated(1, 400)]
    new = [task.experts for task in tasks("unseen")]

    def prices(tables: list[Any]) -> set[Any]:
        return {(one.read_price, one.write_price) for table in tables for one in table}

    def abilities(tables: list[Any]) -> set[str]:
        return {one.ability for table in tables for one in table[3:-1]}

    assert not prices(seen) & prices(new)
    assert abilities(seen) == set(SUBJECTS) and len(abilities(new)) == 3
    assert not abilities(seen) & abilities(new)


def test_the_same_rows_are_made_again_and_a_wrong_split_is_named() -> None:
    assert rows("tune", eval_per_cell=2) == rows("tune", eval_per_cell=2)
    with pytest.raises(ConfigError, match="did you mean 'held-out'"):
        rows("heldout", eval_per_cell=1)


def test_the_claim_says_what_was_chosen_on_which_rows() -> None:
    assert "flatters" in claim("tune", shipped=False)[0]
    assert len(claim("unseen", shipped=True)) == len(claim("unseen", shipped=False)) + 1
