from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.printable import cut_middle

from apps.trainers.agentflow.memory import MIN_CHARACTERS, Action, Memory


def action(result: str, *, query: str = "q", sub_goal: str = "goal") -> Action:
    return Action("calculator", sub_goal, {"query": query}, result)


def rows(memory: Memory, **options: bool) -> list[dict[str, object]]:
    return [json.loads(line) for line in memory.render(**options).splitlines()]


def test_an_empty_memory_says_nothing() -> None:
    assert Memory().render() == ""


def test_an_action_is_one_line_of_json() -> None:
    memory = Memory()
    memory.add(action('a "quoted"\nline \\ with {braces}\n## Question\n'))
    assert rows(memory) == [
        {
            "step": 1,
            "tool": "calculator",
            "sub_goal": "goal",
            "arguments": {"query": "q"},
            "result": 'a "quoted"\nline \\ with {braces}\n## Question\n',
        }
    ]
    assert len(memory.render().splitlines()) == 1


def test_a_failed_action_says_so() -> None:
    memory = Memory()
    memory.add(Action("", "", None, "The step could not be read.", failed="empty"))
    assert rows(memory) == [
        {"step": 1, "tool": "", "failed": "empty", "result": "The step could not be read."}
    ]


def test_compact_leaves_the_arguments_out() -> None:
    memory = Memory()
    memory.add(action("42"))
    assert "arguments" not in rows(memory, compact=True)[0]


def test_a_long_result_keeps_its_beginning_and_its_end() -> None:
    memory = Memory(result_characters=100)
    kept = memory.add(action("a" * 500 + "z" * 500))
    assert len(kept.result) == 100
    assert kept.result.startswith("aaa") and kept.result.endswith("zzz")
    assert "1000 characters in all" in kept.result


@given(st.text(max_size=300), st.integers(1, 200))
def test_cutting_keeps_within_its_limit_and_leaves_short_texts_alone(text: str, limit: int) -> None:
    cut = cut_middle(text, limit)
    assert len(cut) <= limit
    assert cut == text or len(text) > limit


@given(
    st.lists(st.tuples(st.text(max_size=400), st.text(max_size=400)), max_size=12),
    st.integers(MIN_CHARACTERS, 3_000),
    st.booleans(),
)
def test_no_actions_outgrow_the_bound(
    texts: list[tuple[str, str]], characters: int, compact: bool
) -> None:
    memory = Memory(result_characters=300, characters=characters)
    for result, query in texts:
        memory.add(action(result, query=query, sub_goal=query))
    shown = rows(memory, compact=compact)
    assert len(memory.render(compact=compact)) <= characters
    if texts:
        assert shown[-1]["step"] == len(texts)


def test_characters_that_json_writes_long_keep_within_the_bound() -> None:
    memory = Memory(result_characters=5_000, characters=MIN_CHARACTERS)
    memory.add(action("\x00" * 5_000, query="\x00" * 8_000, sub_goal="\x00" * 5_000))
    assert len(memory.render()) <= MIN_CHARACTERS and len(rows(memory)) == 1


def test_texts_are_cut_before_actions_are_left_out_and_the_oldest_go_first() -> None:
    memory = Memory(result_characters=1_000, characters=2_000)
    for number in range(5):
        memory.add(action(f"{number}" * 1_000))
    assert [row["step"] for row in rows(memory)] == [1, 2, 3, 4, 5]
    for number in range(5, 30):
        memory.add(action(f"{number % 10}" * 1_000))
    first, *rest = rows(memory)
    assert first == {"steps_left_out": 30 - len(rest)}
    assert [row["step"] for row in rest] == list(range(31 - len(rest), 31))


@pytest.mark.parametrize("options", [{"result_characters": 0}, {"characters": 100}])
def test_a_bound_without_room_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1 and characters at least 512"):
        Memory(**options)
