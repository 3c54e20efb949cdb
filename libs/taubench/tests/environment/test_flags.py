"""The shipped flags are what computing them gives, and they agree with what is known."""

import json
from importlib import resources

import pytest
from taubench import (
    SPLITS,
    Action,
    Environment,
    TaskFlags,
    compute_flags,
    ground_truth,
    load_tasks,
    noop_baseline,
    training_tasks,
)
from taubench.flags import flags_document, is_write
from taubench.task import Task

ALL = {
    f"{domain}/{split}": load_tasks(domain, split) for domain in SPLITS for split in SPLITS[domain]
}


def test_the_shipped_flags_of_all_tasks_are_what_computing_gives() -> None:
    shipped = json.loads(resources.files("taubench").joinpath("flags.json").read_text())
    assert flags_document(ALL) == shipped
    for split, tasks in ALL.items():
        failing = [task.index for task in tasks if task.flags.gt_write_fails]
        assert failing == shipped[split]["gt_write_fails"]


def test_training_leaves_out_tasks_whose_ground_truth_write_fails_unless_told_otherwise() -> None:
    train = ALL["retail/train"]
    kept = training_tasks(train)
    assert len(kept) == 481
    assert all(
        not observation.startswith("Error")
        for task in kept
        for action, observation in ground_truth(task).observations
        if is_write(action)
    )
    assert training_tasks(train, include_gt_write_fails=True) == train


@pytest.mark.parametrize(
    ("split", "baseline"),
    [
        ("retail/train", 5 / 500),
        ("retail/dev", 1 / 20),
        ("retail/test", 7 / 115),
        ("airline/test", 19 / 50),
    ],
)
def test_doing_nothing_scores_the_baseline(split: str, baseline: float) -> None:
    tasks = ALL[split]
    rewards = []
    for task in tasks:
        environment = Environment(task)
        result = environment.step(Action("transfer_to_human_agents", {"summary": ""}))
        rewards.append(result.reward)
    assert noop_baseline(tasks) == pytest.approx(baseline)
    assert sum(rewards) / len(rewards) == pytest.approx(baseline)


def test_a_baseline_of_no_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="no tasks"):
        noop_baseline([])


def test_a_single_failing_write_rewards_doing_nothing() -> None:
    for index in (161, 214, 229, 288, 349):
        task = ALL["retail/train"][index]
        assert task.flags == TaskFlags(gt_write_fails=True, noop_reward=1.0)


def test_two_edits_of_one_order_that_exclude_each_other_are_order_dependent() -> None:
    task = ALL["retail/test"][0]
    order = "#W9583042"
    pending = Action("cancel_pending_order", {"order_id": order, "reason": "no longer needed"})
    again = Action("cancel_pending_order", {"order_id": order, "reason": "ordered by mistake"})
    state = Environment(task).step(Action("get_order_details", {"order_id": order})).observation
    assert json.loads(state)["status"] == "pending"

    def made(*actions: Action) -> Task:
        return Task("retail", "made", len(actions), task.user_id, "", actions, ("ok",))

    assert compute_flags(made(pending)) == TaskFlags(short_outputs=True)
    assert compute_flags(made(pending, again)) == TaskFlags(
        gt_write_fails=True, order_dependent=True, short_outputs=True
    )
