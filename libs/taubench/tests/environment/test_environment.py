"""Upstream's rules where they are visible, and a defined answer to everything else."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from taubench import (
    SPLITS,
    STOP,
    Action,
    Environment,
    FieldDiff,
    Task,
    ground_truth,
    load_tasks,
    tool_schemas,
)
from taubench.environment import MAX_ARGUMENT_DEPTH, MAX_INTEGER_BITS

ALL_SPLITS = [(domain, split) for domain in SPLITS for split in SPLITS[domain]]


def replay(task: Task, *, say_outputs: bool) -> Environment:
    environment = Environment(task)
    for action in task.actions:
        if action.name != "transfer_to_human_agents":
            environment.step(action)
    if say_outputs:
        for output in task.outputs:
            environment.step(Action.respond(output))
            environment.hear("Thank you.")
    environment.step(Action.respond("Goodbye"))
    environment.hear(STOP)
    return environment


@pytest.fixture
def retail() -> Task:
    """Exchanges two items of the delivered order #W2378156."""
    return load_tasks("retail", "test")[0]


@pytest.mark.parametrize(("domain", "split"), ALL_SPLITS)
def test_the_ground_truth_with_its_outputs_said_always_scores_one(domain: str, split: str) -> None:
    failed = [
        task.id
        for task in load_tasks(domain, split)
        if replay(task, say_outputs=True).score().reward != 1.0
    ]
    assert failed == []


def test_without_the_outputs_exactly_the_tasks_that_expect_some_fail() -> None:
    silent = {
        (domain, split): sum(
            replay(task, say_outputs=False).score().reward for task in load_tasks(domain, split)
        )
        for domain, split in ALL_SPLITS
    }
    assert silent == {
        ("retail", "train"): 500,
        ("retail", "dev"): 20,
        ("retail", "test"): 78,
        ("airline", "test"): 46,
    }


def test_a_reward_tells_which_half_was_missed() -> None:
    task = load_tasks("retail", "test")[2]
    said_only, done_only = Environment(task), replay(task, say_outputs=False)
    said_only.step(Action.respond("There are 1,0 options"))
    assert said_only.score().reward == done_only.score().reward == 0.0
    assert (said_only.score().r_actions, said_only.score().r_outputs) == (False, True)
    assert (done_only.score().r_actions, done_only.score().r_outputs) == (True, False)
    assert done_only.score().outputs == {"10": False}


def test_a_transfer_ends_the_episode_and_scores_the_database(retail: Task) -> None:
    environment = Environment(retail)
    result = environment.step(Action("transfer_to_human_agents", {"summary": "no idea"}))
    assert (result.observation, result.done, result.reward) == ("Transfer successful", True, 0.0)
    truth = replay(retail, say_outputs=True)
    assert truth.done and truth.score().reward == 1.0


def test_a_transfer_with_wrong_arguments_ends_the_episode_as_upstream(retail: Task) -> None:
    result = Environment(retail).step(Action("transfer_to_human_agents", {}))
    assert result.done
    assert result.observation == (
        "Error: TransferToHumanAgents.invoke() missing 1 required positional argument: 'summary'"
    )


def test_a_message_waits_for_the_user_and_the_users_stop_ends_the_episode(retail: Task) -> None:
    environment = Environment(retail)
    result = environment.step(Action.respond("Hello"))
    assert (result.awaits_user, result.done, result.source) == (True, False, "user")
    assert environment.hear("My zip code is 19122.").observation == "My zip code is 19122."
    environment.step(Action.respond("Bye"))
    assert environment.hear(f"Bye {STOP}").done
    assert [action.name for action in environment.actions] == ["respond", "respond"]


def test_a_user_that_leaves_without_the_stop_word_ends_the_episode_too(retail: Task) -> None:
    environment = Environment(retail)
    environment.step(Action.respond("Hello"))
    assert environment.hear("", done=True).done


def test_the_callers_mistakes_raise_and_name_the_task(retail: Task) -> None:
    environment = Environment(retail)
    with pytest.raises(RuntimeError, match=r"retail/test/0: step\(\) must come next"):
        environment.hear("Hello")
    environment.step(Action.respond("Hello"))
    with pytest.raises(RuntimeError, match=r"hear\(\) must come next"):
        environment.step(Action("think", {"thought": "hm"}))
    environment.hear(STOP)
    with pytest.raises(RuntimeError, match="the episode is over"):
        environment.step(Action("think", {"thought": "hm"}))
    environment.reset()
    assert not environment.done and environment.actions == []


def test_a_reset_gives_back_the_untouched_database(retail: Task) -> None:
    environment = replay(retail, say_outputs=True)
    changed = environment.state_hash()
    environment.reset()
    assert environment.state_hash() == Environment(retail).state_hash() != changed


def test_episodes_do_not_see_each_other(retail: Task) -> None:
    one, other = Environment(retail), Environment(retail)
    address = {"address1": "1 Way", "address2": "", "city": "Rome", "state": "NY"}
    arguments = {"user_id": retail.user_id, **address, "country": "USA", "zip": "10001"}
    one.step(Action("modify_user_address", arguments))
    seen = other.step(Action("get_user_details", {"user_id": retail.user_id})).observation
    assert "Rome" not in seen
    assert len(one.changes()) == 1 and not other.changes()


def test_what_a_tool_stored_does_not_change_with_the_callers_arguments() -> None:
    task = load_tasks("airline", "test")[0]
    environment = Environment(task)
    (booking,) = task.actions
    arguments = json.loads(json.dumps(booking.kwargs))
    environment.step(Action(booking.name, arguments))
    arguments["passengers"][0]["first_name"] = "Mallory"
    assert environment.score().r_actions


def test_the_diff_names_each_field_that_differs_from_the_ground_truth(retail: Task) -> None:
    environment = replay(retail, say_outputs=True)
    assert environment.diff() == ()
    environment.reset()
    diff = environment.diff()
    assert FieldDiff("orders", "#W2378156", "status", "delivered", "exchange requested") in diff
    assert {(entry.table, entry.key) for entry in diff} == {("orders", "#W2378156")}


def test_numbers_that_python_calls_equal_but_upstream_does_not_differ() -> None:
    task = load_tasks("airline", "test")[0]
    booking = task.actions[0]
    environment = Environment(task)
    environment.step(
        Action(
            booking.name,
            {**booking.kwargs, "total_baggages": float(booking.kwargs["total_baggages"])},
        )
    )
    assert environment.score().r_actions is False
    assert environment.diff() == (FieldDiff("reservations", "HATHAT", "total_baggages", 3.0, 3),)
    payments = [
        {**payment, "amount": float(payment["amount"])}
        for payment in booking.kwargs["payment_methods"]
    ]
    environment.reset()
    environment.step(Action(booking.name, {**booking.kwargs, "payment_methods": payments}))
    assert [entry.field for entry in environment.diff()] == ["payment_history"]


def test_the_ground_truth_is_replayed_once_per_task(retail: Task) -> None:
    assert ground_truth(retail) is ground_truth(load_tasks("retail", "test")[0])
    assert [action.name for action, _ in ground_truth(retail).observations] == [
        action.name for action in retail.actions
    ]


def test_tasks_of_ones_own_are_scored_like_upstreams(retail: Task) -> None:
    own = Task("retail", "made", 0, retail.user_id, "Exchange.", retail.actions[-1:])
    assert replay(own, say_outputs=True).score().reward == 1.0
    assert Environment(own).score().reward == 0.0


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        (Action("get_weather", {"city": "Rome"}), "Unknown action get_weather"),
        (Action("", {}), "Unknown action "),
        (Action("invoke", {}), "Unknown action invoke"),
        (
            Action("get_order_details", {}),
            "Error: GetOrderDetails.invoke() missing 1 required positional argument: 'order_id'",
        ),
        (
            Action("get_order_details", {"order_id": "#W2378156", "verbose": True}),
            "Error: GetOrderDetails.invoke() got an unexpected keyword argument 'verbose'",
        ),
        (
            Action("get_order_details", {"order_id": "1", "data": {}}),
            "Error: tau_bench.envs.retail.tools.get_order_details.GetOrderDetails.invoke() "
            "got multiple values for keyword argument 'data'",
        ),
        (Action("get_order_details", {"order_id": None}), "Error: order not found"),
        (Action("calculate", {"expression": 5}), "Error: 'int' object is not iterable"),
        (
            Action("calculate", {"expression": "9**9**9"}),
            "Error: the expression is too large to evaluate",
        ),
        (
            Action("think", {"thought": object()}),
            "Error: arguments must be JSON values, got object",
        ),
        (Action("think", {"thought": "x"}, error="it was not JSON"), "Error: it was not JSON"),
        (Action("\ud800", {}), "Unknown action ?"),
    ],
)
def test_every_odd_call_has_a_defined_observation(
    retail: Task, action: Action, observation: str
) -> None:
    result = Environment(retail).step(action)
    assert (result.observation, result.done, result.reward) == (observation, False, 0.0)


def test_arguments_nested_without_end_are_refused_wherever_the_stack_stands(retail: Task) -> None:
    nested: Any = "x"
    for _ in range(MAX_ARGUMENT_DEPTH):
        nested = [nested]
    environment = Environment(retail)
    for value in (nested, [[nested] * 2]):
        result = environment.step(Action("think", {"thought": value}))
        assert result.observation == (
            f"Error: arguments are nested more than {MAX_ARGUMENT_DEPTH} levels deep"
        )


def test_a_tool_that_gives_nothing_is_answered_where_upstream_raises() -> None:
    task = load_tasks("airline", "test")[0]
    environment = Environment(task)
    certificate = Action("send_certificate", {"user_id": task.user_id, "amount": 10})
    observations = [environment.step(certificate).observation for _ in range(4)]
    assert observations[3] == "Error: send_certificate gave no result"
    assert len(set(observations)) == 4


def test_a_number_that_has_no_text_is_refused_before_a_tool_stores_it() -> None:
    task = load_tasks("airline", "test")[0]
    environment = Environment(task)
    arguments = {
        "reservation_id": "NO6JO3",
        "total_baggages": 1,
        "payment_id": "credit_card_4421486",
    }
    for number, answer in (
        (2**MAX_INTEGER_BITS, "Error: arguments hold an integer of more"),
        (9, "{"),
    ):
        bags = Action("update_reservation_baggages", {**arguments, "nonfree_baggages": number})
        assert environment.step(bags).observation.startswith(answer)
    assert FieldDiff("reservations", "NO6JO3", "nonfree_baggages", 9, 0) in environment.diff()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**1030), 2**1030)
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("domain", SPLITS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_call_raises_whatever_its_arguments(domain: str, data: st.DataObject) -> None:
    tasks = load_tasks(domain, "test")
    task = data.draw(st.sampled_from(tasks))
    environment = Environment(task)
    truth = {action.name: dict(action.kwargs) for known in tasks for action in known.actions}
    for schema in data.draw(
        st.lists(st.sampled_from(tool_schemas(domain)), min_size=1, max_size=4)
    ):
        function = schema["function"]
        names = list(function["parameters"]["properties"])
        arguments = truth.get(function["name"], {})
        arguments |= data.draw(st.dictionaries(st.sampled_from([*names, "x", "data"]), JSON))
        result = environment.step(Action(function["name"], arguments))
        result.observation.encode()
        if result.done:
            break
    assert environment.score().reward in (0.0, 1.0)
    assert len(environment.state_hash()) == 64
    environment.diff()


def test_reads_change_nothing() -> None:
    rng = random.Random(3)
    for domain in SPLITS:
        tasks = load_tasks(domain, "test")
        environment = Environment(tasks[0])
        before = environment.state_hash()
        reads = [
            action
            for task in tasks
            for action in task.actions
            if action.name.startswith(("get_", "find_", "search_", "list_", "calculate"))
        ]
        for action in rng.sample(reads, min(len(reads), 60)):
            environment.step(action)
        assert environment.changes() == {}
        assert environment.state_hash() == before
