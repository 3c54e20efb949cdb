"""The experts by rules in the real loop: none sees the label, and whom one asks decides."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Sequence
from typing import Any

import pytest
import tokendelta
from turnwise.command import PreflightError
from turnwise.config import load_toml
from turnwise.episode import Boundary, BoundaryError, Episode
from turnwise.policy import Policy
from turnwise.retrieval import WordIndex
from turnwise.rollout import Rollout

from apps.trainers.toolorchestra.laptop.baselines import CEILING, FixedLeader, routes
from apps.trainers.toolorchestra.laptop.experts import (
    COPES,
    QUERIES,
    UNKNOWN,
    RuleExpert,
    documents,
    rule_models,
)
from apps.trainers.toolorchestra.laptop.method import laptop_method
from apps.trainers.toolorchestra.laptop.tokenizer import train_tokenizer
from apps.trainers.toolorchestra.laptop.world import TOWNS, read_problem, told
from apps.trainers.toolorchestra.method import METHOD
from apps.trainers.toolorchestra.tables import Budget, Expert
from apps.trainers.toolorchestra.task import Task

TOKENIZER = train_tokenizer(["user\nassistant\nanswer a1"])
PROFILE = tokendelta.Profile.from_tokenizer(TOKENIZER)
MAYOR = f"Who is the mayor of {TOWNS[0]}?"


def expert(model: str, price: float = 1) -> Expert:
    tool: Any = {"search": "search", "reason": "enhance_reasoning"}.get(
        model.split("-")[0], "answer"
    )
    prices = {"read_price": price, "write_price": 4 * price}
    return Expert(role=f"{model[0]}{model[-1]}", tool=tool, model=model, **prices)


async def play(question: str, route: Sequence[Expert]) -> Episode:
    problem = read_problem(question)
    assert problem is not None
    task = Task(
        question=question,
        answer=problem.answer,
        experts=tuple(route),
        preferences={"accuracy": 1.0, "cost": 1.0},
        budget=Budget(cost=0.01),
    )
    async with laptop_method() as method:
        engine = FixedLeader(route, TOKENIZER)
        policy = Policy(engine=engine, profile=PROFILE, max_context_tokens=8_192)
        return await method.run(Rollout(task, "q", rollout_id="r", group_id="g", seed=0), policy)


def known(model: str, tool: str, question: str, found: Sequence[str] = ()) -> str:
    return RuleExpert(model).reply(tool, {"question": question, "found": list(found)})


def share(model: str, questions: Sequence[str]) -> float:
    right = 0
    for question in questions:
        problem = read_problem(question)
        assert problem is not None
        right += known(model, "answer", question) == rf"\boxed{{{problem.answer}}}"
    return right / len(questions)


def test_how_often_an_expert_is_right_hangs_on_how_far_the_task_is_above_it() -> None:
    hard = [f"What is {n} * 4321 + 1500?" for n in range(2_000, 2_400)]
    for grade in (1, 2, 3):
        assert share(f"answer-{grade}-1-1", hard) == pytest.approx(COPES[3 - grade], abs=0.07)
    mayors = [f"Who is the mayor of {town}?" for town in TOWNS]
    assert share("answer-3-1-3", mayors) < 0.1 < 0.9 < share("answer-1-3-1", mayors)
    rivers = [f"Which river does {town} lie on?" for town in TOWNS]
    assert share("answer-1-1-1", rivers) > 0.9


def test_an_expert_says_the_same_whenever_it_is_asked_the_same() -> None:
    said = {known("answer-1-1-1", "answer", MAYOR) for _ in range(5)}
    assert len(said) == 1
    others = {known(f"answer-1-1-{n}", "answer", MAYOR) for n in (1, 2, 3)}
    assert len(others) > 1


def test_what_was_found_is_read_off_and_other_documents_are_not() -> None:
    right = told("mayor", TOWNS[0])
    answer = right.rpartition(" is ")[2].removesuffix(".")
    assert known("answer-1-1-1", "answer", MAYOR, [right]) == rf"\boxed{{{answer}}}"
    by_heart = known("answer-1-1-1", "answer", MAYOR)
    assert known("answer-1-1-1", "answer", MAYOR, [told("mayor", TOWNS[1])]) == by_heart
    assert known("answer-1-1-1", "answer", "What is 2 * 3 + 4?", ["2 * 3 + 4 = 99"]) == (
        r"\boxed{99}"
    )


def test_a_good_query_finds_the_document_first_and_a_bad_one_does_not() -> None:
    index = WordIndex(documents())

    async def first(query: str) -> str:
        return (await index.search(query, k=2))[0].text

    good = bad = 0
    for town in TOWNS:
        question = f"Who founded {town}?"
        query = known("search-1", "search", question).removeprefix("<query>").split("</query>")[0]
        hit = asyncio.run(first(query)) == told("founder", town)
        assert hit == (town in query) or town == TOWNS[0]
        good, bad = good + hit, bad + (not hit)
    assert good / (good + bad) == pytest.approx(QUERIES[1], abs=0.12)


def test_a_helper_that_knows_nothing_of_it_says_so() -> None:
    assert known("reason-3", "enhance_reasoning", MAYOR) == UNKNOWN
    assert known("search-3", "search", "What is 2 * 3 + 4?") == "<query>What is 2 * 3 + 4?</query>"
    assert known("answer-3-3-3", "answer", "Who am I?") == rf"\boxed{{{UNKNOWN}}}"


def test_an_expert_is_handed_the_question_and_what_was_found_and_nothing_else() -> None:
    parameters = inspect.signature(RuleExpert.ask).parameters
    assert list(parameters) == ["self", "messages", "max_tokens", "seed"]


def test_a_search_makes_a_weak_expert_right_and_costs_what_its_tokens_cost() -> None:
    weak, finder = expert("answer-1-1-1"), expert("search-3", 2)
    alone = asyncio.run(play(MAYOR, [weak]))
    helped = asyncio.run(play(MAYOR, [finder, weak]))
    assert (alone.metrics["correct"], helped.metrics["correct"]) == (0.0, 1.0)
    assert told("mayor", TOWNS[0]) in json.dumps(list(helped.transcript))
    calls = helped.info["orchestra"]["made"]
    usd = sum(
        1e-6 * price * (call["read_tokens"] + 4 * call["written_tokens"])
        for call, price in zip(calls, (2, 1), strict=True)
    )
    assert helped.metrics["cost_usd"] == pytest.approx(usd)
    assert helped.score == pytest.approx((1 + (1 - usd / 0.01)) / 2)


def test_every_expert_of_a_table_is_there() -> None:
    assert len(rule_models()) == 27 + 3 + 3
    with pytest.raises(KeyError):
        rule_models()["answer-4-1-1"]


def test_fixed_routes_score_what_the_experts_are_worth() -> None:
    async def scores() -> tuple[dict[str, float], int]:
        async with laptop_method(eval_per_cell=1) as method:
            tasks = {row.id: method.task(row) for row in method.rows("tune")[::6]}
            first = next(iter(tasks.values()))
            assert len(routes(first)) == 3 * len(first.of("answer"))
            found = dict(await method.baselines(tasks, TOKENIZER, PROFILE))
            assert method.landmarks.keys() == found.keys()
            dear, cheap = (
                method.landmarks[f"always the {which} expert"] for which in ("dearest", "cheapest")
            )
            assert dear[0] > 5 * cheap[0] and dear[1] > cheap[1]
            return found, len(tasks)

    found, count = asyncio.run(scores())
    ceiling = found.pop(CEILING)
    assert count == 5 and len(found) == 5 and max(found.values()) <= ceiling <= 1.0


def test_a_baseline_is_not_made_of_lost_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: RuleExpert, *args: Any, **more: Any) -> Any:
        raise BoundaryError(Boundary.ENGINE, "nobody there")

    monkeypatch.setattr(RuleExpert, "ask", broken)

    async def scores() -> None:
        async with laptop_method(eval_per_cell=1) as method:
            tasks = {row.id: method.task(row) for row in method.rows("tune")[:1]}
            await method.baselines(tasks, TOKENIZER, PROFILE)

    with pytest.raises(PreflightError, match=r"lost:engine.*nobody there"):
        asyncio.run(scores())


def test_the_preset_names_rules_and_the_prompt_that_the_policy_knows() -> None:
    assert METHOD.preset is not None
    section = load_toml(METHOD.preset)["toolorchestra"]
    assert (section["experts"], section["prompt"]) == ("rules", "compact")
