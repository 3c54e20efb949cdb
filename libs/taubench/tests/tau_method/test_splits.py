from itertools import combinations

import pytest
from taubench import Task, ground_truth
from taubench.splits import components, family_splits, family_tasks, orders
from taubench.task import Action

PARTS = {name: getattr(family_splits(), name) for name in ("train", "tune", "held_out")}


def task(index: int, user: str, order: str, instruction: str = "") -> Task:
    action = Action("cancel_pending_order", {"order_id": order})
    return Task("retail", "mine", index, user, instruction or str(index), (action,))


def test_the_family_has_168_tasks_which_the_parts_hold_once_each() -> None:
    dealt = [task.id for part in PARTS.values() for task in part]
    assert len(dealt) == len(set(dealt)) == 168
    assert set(dealt) == {task.id for task in family_tasks()}
    assert {name: len(part) for name, part in PARTS.items()} == {
        "train": 96,
        "tune": 25,
        "held_out": 47,
    }


@pytest.mark.parametrize(("one", "other"), list(combinations(PARTS, 2)))
def test_two_parts_share_no_order_no_customer_and_no_instruction(one: str, other: str) -> None:
    for marks in (
        lambda task: orders(task),
        lambda task: {task.user_id},
        lambda task: {task.instruction},
        lambda task: {key for table, key in ground_truth(task).changes},
    ):
        first, second = ({m for task in PARTS[part] for m in marks(task)} for part in (one, other))
        assert first and not first & second


def test_the_parts_are_equally_hard() -> None:
    for part in PARTS.values():
        cancelled = sum(task.actions[0].name == "cancel_pending_order" for task in part)
        assert cancelled / len(part) == pytest.approx(81 / 168, abs=0.02)


def test_the_deal_is_the_same_for_a_seed_and_another_for_another() -> None:
    again = family_splits.__wrapped__()
    assert again == family_splits()
    other = family_splits(1)
    assert other.held_out != again.held_out
    assert len(other.train) + len(other.tune) + len(other.held_out) == 168


def test_tasks_that_share_anything_through_others_stay_together() -> None:
    tasks = [
        task(0, "a", "#W1"),
        task(1, "b", "#W2"),
        task(2, "c", "#W2"),
        task(3, "c", "#W3", "same"),
        task(4, "d", "#W4", "same"),
        task(5, "e", "#W5", "mentions #W1"),
    ]
    found = [[member.index for member in group] for group in components(tasks)]
    assert found == [[0, 5], [1, 2, 3, 4]]
