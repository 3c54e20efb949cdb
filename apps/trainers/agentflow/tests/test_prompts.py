"""What every model is shown, and that training and evaluation show the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.command import PreflightError
from turnwise.method import Services, make_method
from turnwise.testing import byte_tokenizer

from apps.trainers.agentflow.memory import Action, Memory
from apps.trainers.agentflow.parse import Malformed, NextStep, read_step
from apps.trainers.agentflow.prompts import Prompts, make_prompts, sections
from apps.trainers.agentflow.question import Question
from apps.trainers.agentflow.tests.scripted import Oracle, Scripted, policy, rollout
from apps.trainers.agentflow.toolbox import Toolbox

TOOLS = Toolbox([Scripted(), Oracle()])
QUESTION = "How many?\n## Tools\nnone"
STEP = NextStep("why", "the context", "the sub-goal", Scripted())
PROBLEM = Malformed("unknown_tool", "there is no tool 'x'")


def memory() -> Memory:
    made = Memory()
    made.add(Action("calculator", "multiply", {"query": "6*7"}, "the result is 42"))
    return made


def all_prompts(prompts: Prompts) -> dict[str, str]:
    return {
        "analysis": prompts.analysis(QUESTION, TOOLS, max_steps=5),
        "next_step": prompts.next_step(
            QUESTION, "the analysis", TOOLS, memory(), steps_left=4, problem=PROBLEM
        ),
        "command": prompts.command(QUESTION, STEP, problem=PROBLEM),
        "verdict": prompts.verdict(QUESTION, "the analysis", TOOLS, memory(), steps_left=3),
        "final": prompts.final(QUESTION, "the analysis", memory()),
        "generate": prompts.generate("the task"),
        "code": prompts.code("the task", packages=("sympy",)),
    }


BOTH = pytest.mark.parametrize("name", ["full", "compact"])


@BOTH
def test_every_builder_shows_the_question_and_what_is_known(name: str) -> None:
    made = {place: sections.read(text) for place, text in all_prompts(make_prompts(name)).items()}
    for place in ("analysis", "next_step", "command", "verdict", "final"):
        assert made[place]["Question"] == QUESTION
    for place in ("next_step", "verdict", "final"):
        assert '"result": "the result is 42"' in made[place]["Steps so far"]
    for place in ("analysis", "next_step"):
        assert "calculator" in made[place]["Tools"]
        assert "Whole numbers below 7,000 alone." in made[place]["Tools"]
    assert made["next_step"]["Analysis"] == "the analysis"
    assert made["next_step"]["Steps left"].startswith("4")
    assert made["command"]["Sub-goal"] == "the sub-goal"
    for place in ("next_step", "command"):
        assert made[place]["Problem with the last answer"] == PROBLEM.message
    for place in ("generate", "code"):
        assert made[place]["Task"] == "the task"


@BOTH
def test_what_a_prompt_asks_for_is_what_the_parser_takes(name: str) -> None:
    labels = make_prompts(name).labels
    texts = ["some words"] * (len(labels) - 1)
    answer = "\n".join(
        f"{label}: {text}" for label, text in zip(labels, [*texts, "oracle"], strict=True)
    )
    assert isinstance(read_step(answer, TOOLS, labels), NextStep)
    full = make_prompts("full").next_step("Q", "A", TOOLS, Memory(), steps_left=1)
    assert all(f"\n{label}: " in full for label in make_prompts("full").labels)


def test_the_full_coder_is_told_what_it_can_import() -> None:
    prompts = make_prompts("full")
    assert "the standard library and sympy." in prompts.code("t", packages=["sympy"])
    assert "the standard library alone." in prompts.code("t", packages=[])


def test_compact_says_the_same_in_a_fraction_of_the_tokens() -> None:
    full, compact = all_prompts(make_prompts("full")), all_prompts(make_prompts("compact"))
    for place in full:
        assert len(compact[place]) < 0.6 * len(full[place])


def test_unknown_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="full, compact, found 'short'"):
        make_prompts("short")


LINES = st.lists(
    st.sampled_from(["## Tools", "##  x", " ## Tools", "(none)", "text", ""]), max_size=6
)


@given(LINES, st.text(max_size=40))
def test_a_text_is_read_back_and_never_opens_a_section(lines: list[str], other: str) -> None:
    text = "\n".join(lines)
    read = sections.read(sections.join("Head.", [("Question", text), ("Tools", other)], "Tail."))
    assert list(read) == ["", "Question", "Tools", "Answer format"]
    if " ## " not in text and text.strip() != sections.NONE:
        assert read["Question"] == text.strip()


async def test_training_and_evaluation_send_the_same_ids() -> None:
    """Opened beside the engine of a trainer, and as hooks and evaluators open it."""
    question = Question("What is 123 * 457?", "56211")
    turns = ["It multiplies.", "Sub-Goal: Multiply.\nTool Name: base_generator"]
    turns += ["Sub-Goal: Multiply.\nTool Name: python_coder"] * 2
    played = []
    for services in ("trainer", "hooks"):
        made, engine = policy(*turns)
        method = make_method("agentflow", {"helpers": "rules", "prompt": "compact"})
        try:
            await method.open(Services(policy=made if services == "trainer" else None))
        except PreflightError as error:
            pytest.skip(str(error))
        episode = await method.run(rollout(question), made)
        await method.close()
        played.append((episode, [call.prompt_ids.tolist() for call in engine.calls]))
    (first, sent), (second, again) = played
    assert sent == again and len(sent) >= 2
    assert [s.ids.tolist() for s in first.segments] == [s.ids.tolist() for s in second.segments]
    assert first.score == second.score == 1.0
    rendered: Any = byte_tokenizer().apply_chat_template(
        [{"role": "user", "content": first.transcript[0]["content"]}],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert sent[0] == list(rendered)
