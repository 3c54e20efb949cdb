"""What counts, by upstream's rule and by the strict one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from taubench.tau2 import (
    KNOWN_HOLES,
    STOP,
    Call,
    Environment,
    ReferenceAction,
    Score,
    Tau2Task,
    load_tasks,
    task_by_id,
)
from taubench.tau2.flags import play_reference
from taubench.tau2.task import Criteria


def with_criteria(task: Tau2Task, **changes: Any) -> Tau2Task:
    assert task.criteria is not None
    # Another hash: what is cached per task must not be another task's.
    return replace(task, criteria=replace(task.criteria, **changes), content_hash=repr(changes))


def ended(task: Tau2Task, *moves: tuple[str | None, list[Call]]) -> Environment:
    environment = Environment(task)
    environment.user_step("Hello.")
    for content, calls in moves:
        environment.step(content, calls)
        if environment.turn == "user":
            environment.user_step("Go on.")
    environment.step("Goodbye.")
    environment.user_step(STOP)
    return environment


def action(name: str, compare: tuple[str, ...] | None = None, **arguments: Any) -> ReferenceAction:
    return ReferenceAction("0", "assistant", name, arguments, compare)


def action_task(*actions: ReferenceAction) -> Tau2Task:
    return with_criteria(task_by_id("mock", "create_task_1"), actions=actions, basis=("ACTION",))


USERS = Call("get_users")
UPDATE = Call("update_task_status", {"task_id": "task_1", "status": "completed"})


def rewards(environment: Environment, **options: Any) -> tuple[float | None, float | None]:
    return (
        environment.evaluate(**options).reward,
        environment.evaluate(strict=True, **options).reward,
    )


def test_a_bare_call_matches_every_reference_of_its_name_unless_strict() -> None:
    task = action_task(action("update_task_status", task_id="task_1", status="completed"))
    bare = Call("update_task_status", {})
    assert rewards(ended(task, (None, [bare]))) == (1.0, 0.0)
    assert rewards(ended(task, (None, [UPDATE]))) == (1.0, 1.0)


def test_a_failed_call_counts_unless_strict() -> None:
    task = action_task(action("update_task_status", task_id="none", status="completed"))
    failed = Call("update_task_status", {"task_id": "none", "status": "completed"})
    assert rewards(ended(task, (None, [failed]))) == (1.0, 0.0)


def test_an_agents_call_of_the_users_tool_counts_unless_strict() -> None:
    task = with_criteria(
        load_tasks("telecom")[0],
        actions=(ReferenceAction("0", "user", "toggle_data", {}),),
        basis=("ACTION",),
    )
    assert rewards(ended(task, (None, [Call("toggle_data")]))) == (1.0, 0.0)


def test_named_arguments_alone_are_compared_also_when_strict() -> None:
    task = action_task(action("update_task_status", ("task_id",), task_id="task_1", status="other"))
    assert rewards(ended(task, (None, [UPDATE]))) == (1.0, 1.0)
    task = action_task(action("get_users", (), anything=1))
    assert rewards(ended(task, (None, [USERS]))) == (1.0, 1.0)


def said_task(text: str) -> Tau2Task:
    return with_criteria(
        task_by_id("mock", "create_task_1"),
        communicate=(text,),
        basis=("COMMUNICATE",),
    )


def test_text_beside_a_call_is_communicated_unless_strict() -> None:
    assert rewards(ended(said_task("forty"), ("It is forty.", [USERS]))) == (1.0, 0.0)
    assert rewards(ended(said_task("forty"), ("It is Forty.", []))) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("wanted", "said", "strict"),
    [
        ("10", "You have 100 of them.", 0.0),
        ("10", "It is 10.5 dollars.", 0.0),
        ("10", "It is 1.10", 0.0),
        ("10", "It is $10.", 1.0),
        ("1024", "It is 1,024 dollars", 1.0),
        ("green shirt", "A GREEN SHIRT, please", 1.0),
    ],
)
def test_a_string_within_another_is_communicated_unless_strict(
    wanted: str, said: str, strict: float
) -> None:
    assert rewards(ended(said_task(wanted), (said, []))) == (1.0, strict)


def test_telecoms_databases_match_in_43_tasks_and_in_108_when_the_sides_are_brought_in_line() -> (
    None
):
    matches = {False: 0, True: 0}
    for task in load_tasks("telecom"):
        environment = Environment(task)
        play_reference(environment)
        for strict in matches:
            score = environment.evaluate(strict=strict)
            matches[strict] += bool(score.db_match)
            assert score.reward == 1.0
    assert matches == {False: 43, True: 108}


@pytest.mark.parametrize(("domain", "task_set"), [("airline", "v1.0"), ("retail", "v1.0")])
def test_the_reference_solution_passes_strictly(domain: str, task_set: str) -> None:
    for task in load_tasks(domain, "base", task_set):
        environment = Environment(task)
        play_reference(environment)
        assert task.criteria is not None
        verdicts = [True] * len(task.criteria.nl_assertions)
        assert environment.evaluate(nl=verdicts, strict=True).reward == 1.0, task.key


def judged_task(**changes: Any) -> Tau2Task:
    return with_criteria(
        task_by_id("mock", "create_task_1_nl_eval"), basis=("DB", "NL_ASSERTION"), **changes
    )


def test_without_a_judge_the_reward_is_unknown_and_never_zero() -> None:
    score = ended(judged_task(), (None, [UPDATE])).evaluate()
    assert (score.reward, score.needs_nl) == (None, True)
    assert score.components == {"DB": 1.0, "NL_ASSERTION": None}
    assert score.with_nl([True, True]).reward == 1.0
    assert score.with_nl([True, False]).reward == 0.0
    assert [one.met for one in score.with_nl([True, False]).nl_assertions] == [True, False]


def test_no_judge_is_needed_once_another_component_is_zero() -> None:
    task = judged_task(
        actions=(action("update_task_status", task_id="task_1", status="completed"),)
    )
    score = ended(task).evaluate()
    assert (score.reward, score.needs_nl) == (0.0, False)
    assert score.components == {"DB": 0.0, "NL_ASSERTION": None}


def test_a_basis_of_assertions_that_do_not_exist_needs_no_judge() -> None:
    score = ended(judged_task(nl_assertions=())).evaluate()
    assert (score.reward, score.needs_nl) == (1.0, False)


def test_as_many_verdicts_as_assertions_are_wanted() -> None:
    score = ended(judged_task()).evaluate()
    with pytest.raises(ValueError, match="2 NL assertions need as many verdicts, got 1"):
        score.with_nl([True])


def test_an_assertion_that_cant_be_evaluated_does_not_hold() -> None:
    score = ended(task_by_id("mock", "create_task_1_with_env_assertions")).evaluate()
    assert [one.met for one in score.assertions] == [False]
    assert score.reward == 0.0


def test_an_episode_that_is_not_over_is_worth_nothing_and_says_so() -> None:
    score = Environment(task_by_id("retail", "0")).evaluate()
    assert (score.reward, score.note, score.basis) == (0.0, "not over", ())


def test_a_task_without_criteria_is_worth_one() -> None:
    task = replace(task_by_id("mock", "create_task_1"), criteria=None, content_hash="none")
    assert ended(task).evaluate() == Score(1.0, note="no criteria")


def test_a_reference_without_actions_and_assertions_compares_no_state() -> None:
    task = replace(
        task_by_id("mock", "create_task_1"), criteria=Criteria(basis=("DB",)), content_hash="empty"
    )
    score = ended(task, (None, [UPDATE])).evaluate()
    assert (score.reward, score.db_match) == (1.0, None)


def test_holes_are_told_with_what_strict_makes_of_them() -> None:
    assert len({hole.name for hole in KNOWN_HOLES}) == len(KNOWN_HOLES)
    assert [hole.name for hole in KNOWN_HOLES if not hole.strict] == [
        "nothing to do",
        "names only",
        "no assertion",
    ]
