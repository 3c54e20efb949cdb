"""Generated texts: where the gold stands, that it is all there is, and that nothing leaks."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from turnwise.config import ConfigError, load_toml

from apps.trainers.memagent.laptop.baselines import FACT, answer, what_counts
from apps.trainers.memagent.laptop.demonstrations import KEPT, SECTION, demonstrated
from apps.trainers.memagent.laptop.stories import SENTENCES, rows, splits
from apps.trainers.memagent.laptop.warmstart import laptop_method, make_tokenizer
from apps.trainers.memagent.laptop.world import make_story, spaced
from apps.trainers.memagent.method import METHOD

CONTEXT = "rollout-max-context-len"

CELLS: list[Any] = [
    ("both", "random"),
    ("bridge", "forward"),
    ("bridge", "random"),
    ("bridge", "reverse"),
]


def stories(kind: Any, order: Any, count: int, sentences: int = SENTENCES) -> list[Any]:
    return [
        make_story(n, f"s{n}", kind=kind, order=order, sentences=sentences) for n in range(count)
    ]


@pytest.mark.parametrize(("kind", "order"), CELLS)
def test_the_whole_text_answers_and_without_a_gold_fact_only_chance_does(
    kind: Any, order: Any
) -> None:
    guessed = 0
    for story in stories(kind, order, 60):
        assert answer(story.question, story.text) == story.answer
        for place in story.gold:
            rest = [fact.text for n, fact in enumerate(story.facts) if n != place]
            guessed += answer(story.question, " ".join(rest)) == story.answer
    assert guessed < 0.1 * 120


@pytest.mark.parametrize(("kind", "order"), CELLS)
def test_a_memory_of_what_counts_answers_unless_a_home_came_too_early(
    kind: Any, order: Any
) -> None:
    for story in stories(kind, order, 60):
        kept = ""
        for start in range(0, SENTENCES, SECTION):
            section = spaced(story.facts[start : start + SECTION])
            kept = what_counts(story.question, kept + section)
            assert len(FACT.findall(kept)) <= 2
        first, second = (place // SECTION for place in story.gold)
        early = kind == "bridge" and second < first
        assert early or answer(story.question, kept) == story.answer


@pytest.mark.parametrize(("kind", "order"), CELLS)
def test_a_relation_of_a_person_is_told_once(kind: Any, order: Any) -> None:
    for story in stories(kind, order, 20, 8 * SENTENCES):
        told = Counter((fact.relation, fact.subject) for fact in story.facts)
        assert max(told.values()) == 1 and len(story.facts) == 8 * SENTENCES


def test_the_order_of_the_evidence_is_as_named() -> None:
    assert all(one.gold[0] < one.gold[1] for one in stories("bridge", "forward", 50))
    assert all(one.gold[0] > one.gold[1] for one in stories("bridge", "reverse", 50))
    ahead = sum(one.gold[0] < one.gold[1] for one in stories("bridge", "random", 400))
    assert 150 < ahead < 250


def test_gold_stands_everywhere_with_equal_chance() -> None:
    tenths = Counter(10 * one.gold[0] // SENTENCES for one in stories("both", "random", 1_000))
    assert sum((tenths[n] - 100) ** 2 / 100 for n in range(10)) < 27.9  # p = 0.001


def test_no_question_holds_its_answer() -> None:
    for row in rows("train", per_cell=1):
        words = set(re.findall(r"\w+", str(row.prompt)))
        assert not words & set(str(row.label).replace(" and ", " ").split())


def test_no_split_has_a_text_of_another() -> None:
    texts = [
        row.metadata["context"]
        for name in ("train", "tune", "held-out")
        for row in rows(name, per_cell=4)
    ]
    texts += [one.text for one in demonstrated(1, range(50))]
    assert len(set(texts)) == len(texts)


def test_lengths_and_orders_are_counted_apart() -> None:
    lengths = Counter(row.metadata["part"] for row in rows("lengths", per_cell=2))
    assert lengths == {"1x": 10, "2x": 10, "4x": 10, "8x": 10}
    longest = rows("lengths", per_cell=2)[-1].metadata["context"]
    assert len(FACT.findall(longest)) == 8 * SENTENCES
    orders = Counter(row.metadata["part"] for row in rows("orders", per_cell=2))
    assert set(orders.values()) == {6} and "bridge reverse" in orders
    for name in splits():
        names = [row.id for row in rows(name, per_cell=2)]
        assert len(set(names)) == len(names)
    with pytest.raises(ConfigError, match="did you mean 'held-out'"):
        rows("heldout", per_cell=1)


def test_a_sentence_has_five_tokens_so_that_sections_end_with_one() -> None:
    method = laptop_method()
    tokenizer: Any = make_tokenizer(method, 1)
    assert method.options.chunk_tokens == 5 * SECTION
    assert method.options.max_memory_tokens > 5 * KEPT
    for story in demonstrated(3, range(40)):
        assert len(tokenizer.encode(story.text)) == 5 * len(story.facts)


def test_a_name_is_the_same_token_wherever_it_stands() -> None:
    tokenizer: Any = make_tokenizer(laptop_method(), 1)
    for story in stories("bridge", "forward", 20):
        asked, other = (story.facts[place].subject for place in story.gold)
        for name in (asked, other):
            (token,) = tokenizer.encode(f" {name}")
            counted = tokenizer.encode(f"{story.question}\n{story.text}\n").count(token)
            assert counted == len(re.findall(rf"\b{name}\b", f"{story.question} {story.text}"))


def test_a_text_does_not_fit_what_the_policy_sees_at_once() -> None:
    preset = load_toml(METHOD.preset)
    tokenizer: Any = make_tokenizer(laptop_method(), 1)
    for row in rows("held-out", per_cell=1):
        assert len(tokenizer.encode(row.metadata["context"])) > 2.5 * preset[CONTEXT]
