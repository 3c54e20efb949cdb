import asyncio
import random
import re
from collections import Counter
from typing import get_args

import pytest
from taubench import load_tasks
from taubench.source import domain_files
from taubench.splits import orders

from apps.trainers.tau import synthetic
from apps.trainers.tau.synthetic import (
    Case,
    CaseEnvironment,
    CaseUser,
    Mistake,
    make_case,
)

CASES = [make_case(3, index, mistake_share=0.5) for index in range(2_000)]


def spoken(case: Case) -> str:
    return " ".join([CaseUser(case).opening(), *case.turns])


def test_no_order_and_no_customer_of_a_real_task_is_used() -> None:
    real = [
        task
        for domain, splits in (("retail", ("train", "dev", "test")), ("airline", ("test",)))
        for split in splits
        for task in load_tasks(domain, split)
    ]
    assert len(real) == 685
    real_orders = frozenset().union(*map(orders, real))
    customers = {task.user_id for task in real}
    assert len(real_orders) > 500 and len(customers) > 280
    for case in CASES:
        assert not orders(case.task) & real_orders
        assert not set(case.tables["orders"]) & real_orders
        assert case.task.user_id not in customers


def test_nothing_that_identifies_a_record_of_the_database_is_used() -> None:
    tables = domain_files("retail").tables
    users = tables["users"].values()
    emails = {user["email"] for user in users}
    people = {(*user["name"].values(), user["address"]["zip"]) for user in users}
    known = {*tables["orders"], *tables["users"], *emails}
    known |= {method for user in users for method in user["payment_methods"]}
    known |= {item for product in tables["products"].values() for item in product["variants"]}
    for case in CASES:
        profile = case.profile
        assert (*profile["name"].values(), profile["address"]["zip"]) not in people
        words = set(re.findall(r"[#\w.@]+", spoken(case))) | set(case.tables["orders"])
        assert not {word.strip(".") for word in words} & known
        assert profile["email"] not in emails


def test_a_drawn_key_that_exists_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = synthetic._digits(random.Random(1), 7, "#W{}")
    pools = synthetic._pools()
    taken = synthetic._Pools(
        pools.first_names, pools.last_names, pools.products, frozenset({first})
    )
    monkeypatch.setattr(synthetic, "_pools", lambda: taken)
    assert synthetic._digits(random.Random(1), 7, "#W{}") != first


def test_a_case_depends_on_its_seed_and_number_alone() -> None:
    assert make_case(3, 17, mistake_share=0.5) == CASES[17]
    assert make_case(4, 17, mistake_share=0.5).turns != CASES[17].turns


def test_the_share_of_mistakes_is_the_one_asked_for_and_every_kind_occurs() -> None:
    kinds = Counter(case.mistake for case in CASES)
    assert 0.46 < 1 - kinds.pop(None) / len(CASES) < 0.54
    assert set(kinds) == set(get_args(Mistake))
    assert min(kinds.values()) > 20
    assert all(make_case(3, i, mistake_share=0.0).mistake is None for i in range(200))


def test_a_mistake_changes_what_is_said_and_nothing_else() -> None:
    for index, case in enumerate(CASES[:300]):
        right = make_case(3, index, mistake_share=0.0)
        assert right.task == case.task and right.tables == case.tables
        assert (right.turns == case.turns) == (case.mistake is None)


def test_the_right_call_scores_on_the_cases_own_tables_and_doing_nothing_does_not() -> None:
    for case in CASES[:200]:
        environment = CaseEnvironment(case)
        assert environment.score().reward == 0.0
        environment.step(case.task.actions[0])
        assert environment.score().reward == 1.0
        assert CaseEnvironment(case).score().reward == 0.0


def test_the_customer_speaks_as_those_of_real_tasks_do() -> None:
    words = asyncio.run(CaseUser(CASES[0]).reset(CASES[0].task))
    pattern = (
        r"My name is [A-Z]\w+ [A-Z]\w+\. My (zip code is \d{5}|email is [\w.]+@example\.com)\. "
        r"(Cancel order #W\d{7} because (no longer needed|ordered by mistake)|"
        r"Return #W\d{7} via \w+: .+)\."
    )
    assert all(re.fullmatch(pattern, CaseUser(case).opening()) for case in CASES[:300])
    assert words == CaseUser(CASES[0]).opening()
