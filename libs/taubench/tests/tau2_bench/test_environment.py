"""What upstream leaves open, and what here is deliberately otherwise."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from taubench.tau2 import (
    GREETING,
    STOP,
    Call,
    Environment,
    Message,
    Termination,
    TrajectoryMismatch,
    Turn,
    UserProtocolError,
    evaluate,
    load_tasks,
    messages_from_json,
    messages_to_json,
    task_by_id,
)
from taubench.tau2.flags import play_reference
from taubench.tau2.tables import snapshot

SERVICE = "[service_issue]airplane_mode_on[PERSONA:None]"


def begun(domain: str = "retail", task_id: str = "0", **options: Any) -> Environment:
    """An episode in which the agent is to speak."""
    environment = Environment(task_by_id(domain, task_id), **options)
    environment.user_step("Hello.")
    return environment


def results(environment: Environment, *calls: Call) -> Sequence[Message]:
    return environment.step(None, calls).results


def test_the_agent_has_greeted_and_the_user_is_to_speak() -> None:
    environment = Environment(task_by_id("retail", "0"))
    assert environment.history == (Message("assistant", GREETING),)
    assert (environment.turn, environment.steps) == (Turn.USER, 0)
    with pytest.raises(RuntimeError, match="retail/v1.0/0: it is the user's turn"):
        environment.step("I speak out of turn.")


def test_all_calls_of_a_message_run_and_text_beside_them_reaches_nobody() -> None:
    environment = begun()
    calls = [Call("calculate", {"expression": "1 + 1"}), Call("calculate", {"expression": "2 * 3"})]
    found = environment.step("I count.", calls)
    assert [one.content for one in found.results] == ["2.0", "6.0"]
    assert [one.id for one in found.results] == ["call_1", "call_2"]
    assert found.turn is Turn.AGENT
    assert "I count." not in [one.content for one in environment.seen_by_user()]
    assert "I count." in [one.content for one in environment.seen_by_agent()]


def test_a_users_calls_are_not_seen_by_the_agent() -> None:
    task = load_tasks("telecom")[0]
    environment = Environment(task)
    environment.user_step(None, [Call("check_status_bar")])
    assert environment.turn is Turn.USER
    environment.user_step("There is no signal.")
    assert [one.content for one in environment.seen_by_agent()] == [GREETING, "There is no signal."]
    assert len(environment.seen_by_user()) == 4


@pytest.mark.parametrize("content", [None, "", "  \n"])
def test_an_agent_that_says_nothing_ends_the_episode_as_its_error(content: str | None) -> None:
    environment = begun()
    assert environment.step(content).termination is Termination.AGENT_ERROR
    score = environment.evaluate()
    assert (score.reward, score.note) == (0.0, "ended by agent_error")


def test_a_user_that_says_nothing_raises_and_is_nobodys_zero() -> None:
    environment = Environment(task_by_id("retail", "0"))
    with pytest.raises(UserProtocolError, match="retail/v1.0/0: the user's message is empty"):
        environment.user_step(" ")
    assert not environment.done


def test_a_call_that_cant_be_read_is_told_and_counted() -> None:
    environment = begun(max_errors=2)
    (result,) = results(environment, Call("get_user_details", error="no JSON"))
    assert (result.content, result.error, environment.errors) == ("Error: no JSON", True, 1)
    environment.step(None, [Call("unheard_of")])
    assert environment.termination is Termination.TOO_MANY_ERRORS


def test_a_stop_beside_the_limit_of_steps_does_not_count() -> None:
    environment = Environment(task_by_id("retail", "10"), max_steps=1)
    assert environment.user_step(STOP).termination is Termination.MAX_STEPS
    assert environment.evaluate(nl=[]).reward == 0.0


@pytest.mark.parametrize("text", ["###STOP###", "ok ###TRANSFER###", "###OUT-OF-SCOPE###"])
def test_each_of_three_markers_of_the_user_ends_the_episode(text: str) -> None:
    environment = Environment(task_by_id("retail", "0"))
    environment.user_step(text)
    assert environment.termination is Termination.USER_STOP
    with pytest.raises(RuntimeError, match="the episode is over"):
        environment.step("Still here.")


def test_the_agent_cant_end_an_episode_with_a_user() -> None:
    environment = begun()
    assert environment.step(f"Bye {STOP}").turn is Turn.USER
    environment = begun()
    (result,) = results(environment, Call("done"))
    assert result.content == "Error: Tool 'done' not found."


def test_solo_ends_by_done_or_by_a_text() -> None:
    task = load_tasks("telecom")[0]
    environment = Environment(task, solo=True)
    assert environment.turn is Turn.AGENT
    assert environment.step(None, [Call("toggle_data"), Call("done")]).termination is (
        Termination.AGENT_STOP
    )
    # The call beside `done` is not made, and the text is upstream's.
    assert environment.history == (Message("assistant", STOP),)
    for text, ending in (("I am done.", "agent_error"), (STOP, "agent_stop")):
        environment = Environment(task, solo=True)
        assert environment.step(text).termination == ending


def test_a_task_without_a_ticket_has_no_solo_mode() -> None:
    with pytest.raises(ValueError, match="retail/v1.0/0 can't be done without a user"):
        Environment(task_by_id("retail", "0"), solo=True)


@pytest.mark.parametrize(("steps", "errors"), [(0, 1), (1, 0)])
def test_a_limit_below_one_is_refused(steps: int, errors: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        Environment(task_by_id("retail", "0"), max_steps=steps, max_errors=errors)


def test_a_tasks_own_history_has_taken_effect() -> None:
    environment = Environment(task_by_id("mock", "update_task_with_message_history"))
    assert (len(environment.history), environment.turn) == (4, Turn.USER)
    environment.user_step("Mark it as completed.")
    (result,) = results(
        environment, Call("update_task_status", {"task_id": "task_2", "status": "completed"})
    )
    assert json.loads(result.content or "")["status"] == "completed"


def test_an_expression_that_would_hold_the_process_is_an_error() -> None:
    (result,) = results(begun(), Call("calculate", {"expression": "9**9**9**9"}))
    assert result.error
    assert result.content == "Error: the expression is too large to evaluate"


def test_half_a_surrogate_comes_back_as_text_that_can_be_encoded() -> None:
    (result,) = results(begun(), Call("get_user_details\ud800", {}))
    (result.content or "").encode()


def test_arguments_that_python_cant_write_down_are_an_error() -> None:
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    (result,) = results(begun(), Call("get_user_details", {"user_id": deep}))
    assert "nested more than 32 levels" in (result.content or "")


def test_a_tool_does_not_keep_the_callers_arguments() -> None:
    environment = begun("airline", "0")
    passengers = [{"first_name": "A", "last_name": "B", "dob": "1990-01-01"}]
    results(
        environment,
        Call(
            "update_reservation_passengers", {"reservation_id": "EHGLP3", "passengers": passengers}
        ),
    )
    before = environment.hashes()
    passengers[0]["first_name"] = "changed"
    assert environment.hashes() == before


def test_a_vpn_broken_in_one_episode_is_whole_in_the_next() -> None:
    broken = next(task for task in load_tasks("telecom", "full") if "bad_vpn" in task.id)
    whole = next(task for task in load_tasks("telecom") if "bad_vpn" not in task.id)
    for task, word in ((broken, "poor"), (whole, "excellent")):
        environment = Environment(task)
        environment.user_step(None, [Call("disconnect_vpn")])
        environment.user_step(None, [Call("connect_vpn")])
        (result,) = environment.user_step(None, [Call("check_vpn_status")]).results
        assert word in (result.content or "").lower()


def test_the_id_of_a_new_bill_follows_from_the_task_and_not_from_chance() -> None:
    def bills() -> str | None:
        environment = Environment(load_tasks("telecom")[0])
        environment.user_step("Hello.")
        charge = Call("refuel_data", {"customer_id": "C1002", "line_id": "L1004", "gb_amount": 1})
        environment.step(None, [charge])
        (result,) = results(environment, Call("get_bills_for_customer", {"customer_id": "C1002"}))
        return result.content

    assert bills() == bills()
    assert '"bill_id": "B' in (bills() or "")


def test_episodes_leave_the_snapshot_and_each_other_alone() -> None:
    for domain in ("airline", "retail"):
        tables = snapshot(domain).tables
        before = _digest(tables)
        for task in load_tasks(domain)[:20]:
            play_reference(Environment(task))
        assert _digest(tables) == before


def _digest(tables: Any) -> str:
    text = "".join(
        record.model_dump_json() for table in tables.values() for record in table.values()
    )
    return hashlib.sha256(text.encode()).hexdigest()


def test_an_episode_costs_kilobytes_and_no_copy_of_the_database() -> None:
    import tracemalloc

    task = task_by_id("airline", "7")
    play_reference(Environment(task))
    gc.collect()
    tracemalloc.start()
    kept = []
    for _ in range(20):
        environment = Environment(task)
        play_reference(environment)
        kept.append(environment)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / len(kept) < 400_000


def test_a_saved_episode_scores_the_same_and_a_changed_result_is_refused() -> None:
    task = task_by_id("retail", "0", "26.3")
    environment = Environment(task)
    play_reference(environment)
    rows = messages_to_json(environment.history)
    history = messages_from_json(json.loads(json.dumps(rows)))
    assert evaluate(task, history, Termination.USER_STOP) == environment.evaluate()
    changed = next(row for row in rows if row["role"] == "tool")
    changed["content"] = "something else"
    with pytest.raises(TrajectoryMismatch, match="find_user_id_by_name_zip returns"):
        evaluate(task, messages_from_json(rows), Termination.USER_STOP)
    del rows[rows.index(changed)]
    with pytest.raises(
        TrajectoryMismatch, match="the result of find_user_id_by_name_zip is missing"
    ):
        evaluate(task, messages_from_json(rows), Termination.USER_STOP)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
TOOLS = [
    "update_reservation_baggages",
    "book_reservation",
    "send_certificate",
    "search_onestop_flight",
    "calculate",
    "",
]
KEYS = st.sampled_from(
    ["reservation_id", "total_baggages", "nonfree_baggages", "payment_id", "self"]
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(TOOLS), st.dictionaries(KEYS, JSON, max_size=4)), max_size=4)
)
def test_whatever_the_arguments_a_call_gives_text_and_the_state_can_be_compared(
    calls: list[tuple[str, dict[str, Any]]],
) -> None:
    environment = begun("airline", "7", max_errors=1000)
    for name, arguments in calls:
        (result,) = results(environment, Call(name, arguments))
        (result.content or "").encode()
    environment.step("Done.")
    environment.user_step(STOP)
    assert environment.evaluate(nl=None).reward in (0.0, 1.0)
