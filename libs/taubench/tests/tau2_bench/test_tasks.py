"""Tasks by name, and the facts about them that stand beside a score."""

from __future__ import annotations

import hashlib
import json

import pytest
from taubench.tau2 import (
    DOMAINS,
    TASK_SETS,
    Tau2Task,
    default_task_set,
    flags,
    load_tasks,
    noop_baseline,
    same_content,
    splits,
    supports_solo,
    task_by_id,
    task_from_json,
    transfer_baseline,
)
from taubench.tau2.pins import PINS
from taubench.tau2.source import TASK_FILES, read_data

from . import upstream

DOES_NOTHING = {
    ("airline", "26.3"): "0 1 4 5 6 10 13 26 28 31 34 36 41 43 45 46 47 48 49",
    ("airline", "v1.0"): "0 1 2 4 5 6 9 10 13 26 27 28 31 34 36 38 41 43 45 46 47 48 49",
    ("retail", "26.3"): "10 12 25 50 57 65 105",
    ("retail", "v1.0"): "10 12 24 25 50 57 62 65 67 68 105",
    ("telecom", "26.3"): "",
}
SETS = [(domain, task_set) for domain in DOMAINS for task_set in TASK_SETS[domain]]


@pytest.mark.parametrize(("domain", "task_set"), SETS)
def test_base_is_parted_into_train_and_test(domain: str, task_set: str) -> None:
    def ids(split: str) -> list[str]:
        return [task.id for task in load_tasks(domain, split, task_set)]

    if domain == "mock":
        assert splits(domain) == {"base": 9}
        return
    assert sorted(ids("train") + ids("test")) == sorted(ids("base"))
    assert set(ids("train")).isdisjoint(ids("test"))
    assert len(ids("base")) == splits(domain)["base"] == {"airline": 50}.get(domain, 114)
    assert [load_tasks(domain, "base", task_set)[0].key] == [
        f"{domain}/{task_set}/{ids('base')[0]}"
    ]


def test_telecom_has_its_full_set_under_both_policies() -> None:
    for domain in ("telecom", "telecom-workflow"):
        assert splits(domain) == {"small": 20, "train": 74, "test": 40, "full": 2285, "base": 114}
        assert len(load_tasks(domain, "full")) == 2285
        assert len({task.id for task in load_tasks(domain, "full")}) == 2285


def test_the_corrected_tasks_are_the_default_and_differ() -> None:
    assert default_task_set("retail") == "v1.0"
    newer, older = (task_by_id("retail", "0", name) for name in TASK_SETS["retail"])
    assert newer == task_by_id("retail", "0")
    assert newer != older
    assert newer.content_hash != older.content_hash
    assert newer.criteria is not None and newer.criteria.basis == ("DB", "NL_ASSERTION")
    assert older.criteria is not None and older.criteria.basis == ("DB", "COMMUNICATE")


def test_the_corrected_tasks_are_the_benchmarks_by_their_git_blobs() -> None:
    # git hash-object of the files in the benchmark's repository, version 1.0.0 and later.
    blobs = {"airline": "ea4ff5e3f5e3", "retail": "e95a9f898b2d"}
    for domain, blob in blobs.items():
        content = read_data(f"{domain}/tasks.json", TASK_FILES[domain, "v1.0"])
        found = hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()
        assert found[:12] == blob
        assert (f"tau2-{domain}-mcp-eval", f"{domain}/tasks.json") in PINS


@pytest.mark.parametrize(("domain", "task_set"), DOES_NOTHING)
def test_the_tasks_that_pay_for_doing_nothing_are_known(domain: str, task_set: str) -> None:
    tasks = load_tasks(domain, "base", task_set)
    paid = [task.id for task in tasks if flags(task).noop_reward == 1.0]
    assert sorted(paid, key=int) == DOES_NOTHING[domain, task_set].split()
    assert noop_baseline(tasks) == len(paid) / len(tasks)


def test_handing_over_at_once_pays_in_20_telecom_tasks() -> None:
    tasks = load_tasks("telecom")
    assert transfer_baseline(tasks) == 20 / 114
    assert {
        task.criteria.basis for task in tasks if task.criteria and flags(task).transfer_reward
    } == {("ENV_ASSERTION", "ACTION")}


@pytest.mark.parametrize(("domain", "task_set"), [*DOES_NOTHING, ("mock", "26.3")])
def test_the_reference_solution_earns_the_reward(domain: str, task_set: str) -> None:
    failing = [task.id for task in load_tasks(domain, "base", task_set) if flags(task).gold_fails]
    wanted = ["update_task_with_history_and_env_assertions"] if domain == "mock" else []
    assert failing == wanted


def test_reference_calls_that_fail_are_named() -> None:
    counts = {
        task_set: sum(
            bool(flags(task).failing_calls) for task in load_tasks("retail", "base", task_set)
        )
        for task_set in TASK_SETS["retail"]
    }
    assert counts == {"v1.0": 15, "26.3": 18}
    assert flags(task_by_id("retail", "105")).failing_calls != ()


def test_the_solo_tasks_are_upstreams() -> None:
    package = upstream.package()
    for domain in ("mock", "telecom"):
        for task in load_tasks(domain):
            theirs = package.tasks.Task.model_validate(task.raw)
            assert supports_solo(task) == package.agents.LLMSoloAgent.check_valid_task(theirs), (
                task.id
            )
    assert sum(map(supports_solo, load_tasks("telecom", "full"))) == 2285
    assert not any(map(supports_solo, load_tasks("retail")))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_tasks("hotel"), "unknown domain 'hotel': τ²-bench has mock, airline"),
        (
            lambda: load_tasks("retail", "dev"),
            "retail has no split 'dev': it has train, test, base",
        ),
        (
            lambda: load_tasks("telecom", task_set="v1.0"),
            "telecom has no task set 'v1.0': it has 26.3",
        ),
        (lambda: noop_baseline([]), "a baseline needs at least one task"),
    ],
)
def test_a_name_that_is_not_there_says_what_is(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()


def test_an_unknown_task_id_is_a_key_error_with_the_count() -> None:
    with pytest.raises(KeyError, match="retail/v1.0 has no task '999' among its 114"):
        task_by_id("retail", "999")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user_scenario": {}}, "KeyError: 'instructions'"),
        ({"evaluation_criteria": {"reward_basis": ["LUCK"]}}, "unknown in reward_basis: LUCK"),
        ({"evaluation_criteria": {"actions": [{"name": "x"}]}}, "KeyError: 'action_id'"),
    ],
)
def test_a_file_that_is_no_task_says_which_key(change: dict[str, object], message: str) -> None:
    raw = {**task_by_id("mock", "create_task_1").raw, **change}
    with pytest.raises(ValueError, match=message):
        task_from_json("mock", raw)


@pytest.mark.parametrize("domain", ["mock", "airline", "retail", "telecom"])
def test_a_task_in_a_file_that_upstream_wrote_is_known_again(domain: str) -> None:
    model = upstream.package().tasks.Task
    for task in load_tasks(domain):
        written = json.loads(model.model_validate(task.raw).model_dump_json())
        read = task_from_json(domain, written)
        assert same_content(read, task), task.key
    if domain in ("airline", "retail"):
        older = load_tasks(domain, task_set="26.3")
        assert sum(map(same_content, load_tasks(domain), older)) < len(older)


def test_what_the_user_does_not_know_is_in_the_instruction_under_its_title() -> None:
    task: Tau2Task = task_by_id("retail", "0")
    assert "What you do not know:\n  You do not remember your email address." in task.instruction
