"""What each strategy shows a policy, and how a text turn is read."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taubench import Environment, load_tasks, tool_schemas
from taubench.fewshot import demonstrated, demonstrations
from taubench.prompts import prompt_view
from taubench.splits import family_splits
from taubench.strategies import STRATEGIES, TextView, read_actions, strategy_view

FULL, COMPACT = prompt_view("full"), prompt_view("compact")
FRAGMENTS = st.sampled_from(
    [
        "Action:",
        "\n",
        '{"name": "x"',
        ', "arguments": {',
        "}",
        '"',
        "```json",
        "```",
        "Thought:",
        "[",
    ]
)


def test_tool_calling_is_the_view_itself() -> None:
    assert strategy_view("tool-calling", FULL) is FULL


@pytest.mark.parametrize("domain", ["retail", "airline"])
@pytest.mark.parametrize("strategy", ["act", "react"])
def test_a_text_strategy_shows_every_tool_in_the_system_prompt_alone(
    strategy: str, domain: str
) -> None:
    view = strategy_view(strategy, FULL)
    system = view.system(domain)
    assert view.tools(domain) == []
    assert system.startswith(FULL.system(domain))
    described = [json.loads(line) for line in system.splitlines() if line.startswith('{"name"')]
    named = [tool["function"]["name"] for tool in tool_schemas(domain)]
    assert [tool["name"] for tool in described] == [*named, "respond"]
    assert ("Thought:" in system) == (strategy == "react")
    assert view.name == f"{strategy}:full"
    assert view.observation("f", "42") == "Observation: 42"


@pytest.mark.parametrize("strategy", ["act", "react"])
def test_the_example_in_the_prompt_is_what_the_parser_reads(strategy: str) -> None:
    system = strategy_view(strategy, COMPACT).system("retail")
    example = system[: system.index("Do one thing")].rsplit("as here:\n", 1)[1]
    turn = read_actions(example)
    assert turn.calls == (("respond", {"content": "Which order is it?"}),)
    assert not turn.errors
    assert bool(turn.thought) == (strategy == "react")


def test_few_shot_keeps_the_tools_and_adds_demonstrations() -> None:
    view = strategy_view("few-shot", FULL)
    assert view.tools("retail") == FULL.tools("retail")
    assert view.observation("f", "42") == "42"
    assert view.system("retail").startswith(FULL.system("retail"))
    for demonstration in demonstrations("retail", FULL):
        assert demonstration in view.system("retail")
    assert len(demonstrations("retail", FULL)) == 3
    assert len(demonstrations("retail", COMPACT)) == 2, "no call of a tool that is not there"


def test_demonstrations_use_nothing_that_is_kept_from_training() -> None:
    parts = family_splits()
    kept = [*parts.tune, *parts.held_out, *load_tasks("retail", "dev")]
    kept += load_tasks("retail", "test")
    text = "\n".join(demonstrations("retail", FULL))
    for task in demonstrated("retail"):
        assert task.split == "train"
        assert task.user_id not in {other.user_id for other in kept}
    for task in kept:
        assert task.user_id not in text
        assert not any(str(order) in text for order in re.findall(r"#W\d{7}", str(task.actions)))


def test_a_demonstration_earns_the_reward_and_shows_every_argument_before_it_is_used() -> None:
    for task, text in zip(demonstrated("retail"), demonstrations("retail", FULL), strict=True):
        environment = Environment(task)
        seen = ""
        for line in text.splitlines():
            called = re.fullmatch(r"Agent calls (\w+) with (.*)", line)
            if called:
                arguments = json.loads(called[2])
                for value in arguments.values():
                    for one in value if isinstance(value, list) else [value]:
                        assert str(one) in seen, f"{task.id}: {one} comes from nowhere"
                environment.step(type(task.actions[0])(called[1], arguments))
            seen += line
        assert environment.score().r_actions


def test_what_cannot_be_shown_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="airline has no train tasks"):
        strategy_view("few-shot", FULL).system("airline")
    with pytest.raises(ValueError, match=", ".join(STRATEGIES)):
        strategy_view("plan", FULL)
    for strategy in ("act", "react"):
        with pytest.raises(ValueError, match="airline"):
            strategy_view(strategy, COMPACT).tools("airline")


CALL = '{"name": "get_order_details", "arguments": {"order_id": "#W1"}}'
READ = ("get_order_details", {"order_id": "#W1"})


@pytest.mark.parametrize(
    "text",
    [
        f"Action: {CALL}",
        f"Action:\n{CALL}",
        f"Thought: I look it up.\nAction: {CALL}",
        f"Thought: I look it up. Action: {CALL}",
        f"**Thought:** I look it up.\n**Action:** {CALL}",
        f"Action:\n```json\n{CALL}\n```",
        f"Action: {CALL}\n\nAnd now I wait.",
        f"<think>Action: {{}}</think>\nAction: {CALL}",
        f"ACTION : {CALL}",
        f"Thought: which reaction: none.\nAction: {CALL}",
    ],
)
def test_an_action_is_read(text: str) -> None:
    turn = read_actions(text)
    assert turn.calls == (READ,)
    assert turn.errors == ()


def test_a_label_within_an_argument_is_no_action() -> None:
    said = {"name": "respond", "arguments": {"content": 'Write Action: {"name": "x"}'}}
    turn = read_actions(f"Action: {json.dumps(said)}")
    assert turn.calls == (("respond", said["arguments"]),)
    assert turn.errors == ()


def test_several_actions_are_all_read_so_that_none_vanishes() -> None:
    made_up = f"Action: {CALL}\nObservation: it is done\nThought: good\nAction: {CALL}"
    assert read_actions(made_up).calls == (READ, READ)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "no_action"),
        ("Which order is it?", "no_action"),
        ("Thought: I wait.", "no_action"),
        ("<think>Action: {}", "no_action"),
        ("Action: get_order_details(#W1)", "not_an_object"),
        ("Action: [1]", "not_an_object"),
        ("Action:", "not_an_object"),
        ('Action: {"name": "x", "arguments": {', "bad_json"),
        ("Action: {'name': 'x'}", "bad_json"),
        ("Action: " + '{"a":' * 100_000, "bad_json"),
        ('Action: {"name": "x", "arguments": ' + "9" * 5000 + "}", "bad_json"),
        ('Action: {"arguments": {}}', "no_name"),
        ('Action: {"name": 3}', "no_name"),
        ('Action: {"name": ""}', "no_name"),
    ],
)
def test_what_cannot_be_read_has_a_kind_and_a_message(text: str, kind: str) -> None:
    turn = read_actions(text)
    assert turn.calls == ()
    assert turn.errors[0].kind == kind
    assert turn.errors[0].message


@given(st.text() | st.lists(FRAGMENTS | st.text(max_size=3), max_size=30).map("".join))
def test_no_text_raises(text: str) -> None:
    turn = read_actions(text)
    assert turn.calls or turn.errors


@pytest.mark.parametrize("piece", ["Action:", "Action: {", "action   ", " ", "\n", "`", "<think>"])
def test_a_long_jumble_is_read_in_no_time(piece: str) -> None:
    read_actions(piece * 10_000)
    read_actions(f"Action:{piece * 10_000}")


def test_a_text_view_is_told_apart() -> None:
    assert isinstance(strategy_view("act", FULL), TextView)
    assert not isinstance(strategy_view("few-shot", FULL), TextView)
