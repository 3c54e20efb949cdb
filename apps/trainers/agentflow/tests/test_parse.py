"""What models wrote, table by table."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.fences import after_thinking, read_code

from apps.trainers.agentflow.parse import (
    CONTEXT,
    JUSTIFICATION,
    MAX_COMMAND_CHARACTERS,
    SUB_GOAL,
    TOOL_NAME,
    Malformed,
    NextStep,
    read_command,
    read_step,
    read_verdict,
)
from apps.trainers.agentflow.tests.scripted import Oracle, Scripted, step
from apps.trainers.agentflow.toolbox import Toolbox

TOOLS = Toolbox([Scripted(), Oracle()])
FULL = (JUSTIFICATION, CONTEXT, SUB_GOAL, TOOL_NAME)
COMPACT = (SUB_GOAL, TOOL_NAME)
CALCULATOR = TOOLS.match("calculator")

PLAIN = "Justification: why\nContext: 6, 7\nSub-Goal: multiply\nTool Name: calculator"
READABLE = {
    "plain": PLAIN,
    "words before": f"Let me see.\n\n{PLAIN}",
    "blank lines": PLAIN.replace("\n", "\n\n") + "\n\n",
    "bold labels": PLAIN.replace("Justification:", "**Justification:**").replace(
        "Tool Name:", "**Tool Name**:"
    ),
    "headings": PLAIN.replace("Context:", "### Context:").replace("Sub-Goal:", "## Sub-Goal:"),
    "numbered": "1. Justification: why\n2. Context: 6, 7\n3) Sub-Goal: multiply\n"
    "4. Tool Name: calculator",
    "bullets": "\n".join(f"- {line}" for line in PLAIN.splitlines()),
    "another case": PLAIN.replace("Sub-Goal", "SUB-GOAL").replace("Tool Name", "tool name"),
    "labels spelt together": PLAIN.replace("Sub-Goal", "Subgoal").replace("Tool Name", "Tool_Name"),
    "text on the next line": PLAIN.replace(": ", ":\n"),
    "one fence around it": f"```\n{PLAIN}\n```",
    "one fence with a name": f"```text\n{PLAIN}\n```",
    "a tool in backticks": PLAIN.replace("calculator", "`calculator`"),
    "a tool in bold": PLAIN.replace("calculator", "**calculator**."),
    "a tool in capitals": PLAIN.replace("calculator", "Calculator"),
    "windows lines": PLAIN.replace("\n", "\r\n"),
    "thought before": f"<think>Tool Name: oracle\nNo.</think>\n{PLAIN}",
    "a draft before": f"{PLAIN.replace('calculator', 'oracle')}\n\nBetter:\n{PLAIN}",
}


@pytest.mark.parametrize("text", READABLE.values(), ids=READABLE)
def test_a_step_that_keeps_the_contract_is_read(text: str) -> None:
    read = read_step(text, TOOLS, FULL)
    assert isinstance(read, NextStep), read
    assert read.tool is CALCULATOR
    assert (read.justification, read.context) == ("why", "6, 7")
    assert read.sub_goal.splitlines()[0] == "multiply"


MALFORMED = {
    "": "empty",
    "   \n ": "empty",
    "<think>": "unfinished_thinking",
    f"<think>a</think>\n<think>{PLAIN}": "unfinished_thinking",
    "I'd use the calculator.": "missing_section",
    PLAIN.replace("Context: 6, 7\n", ""): "missing_section",
    PLAIN.replace("\nTool Name: calculator", ""): "missing_section",
    "Tool Name: calculator": "missing_section",
    f"Justification: {PLAIN.replace(chr(10), ' ')}": "missing_section",
    PLAIN.replace("Sub-Goal:", "Sub-Goal: one\nSub-Goal:"): "repeated_section",
    "Justification: w\nSub-Goal: m\nContext: 6\nTool Name: calculator": "wrong_order",
    "Justification: w\nContext: 6\nTool Name: calculator\nSub-Goal: m": "wrong_order",
    PLAIN.replace("multiply", ""): "empty_section",
    PLAIN.replace("calculator", "**"): "empty_section",
    PLAIN.replace("calculator", "calculator, oracle"): "several_tools",
    PLAIN.replace("calculator", "calculator then oracle"): "several_tools",
    f"{PLAIN}\nThen I would look at it.": "trailing_text",
    f"{PLAIN}\n\n```python\nprint(1)\n```": "trailing_text",
    PLAIN.replace("calculator", "python"): "unknown_tool",
    PLAIN.replace("calculator", "the calculator"): "unknown_tool",
    PLAIN.replace("calculator", "calculator_2"): "unknown_tool",
    PLAIN.replace("calculator", "calculator<|im_end|>"): "unknown_tool",
    PLAIN.replace("calculator", "none"): "unknown_tool",
}


@pytest.mark.parametrize(("text", "kind"), MALFORMED.items())
def test_a_step_that_breaks_the_contract_is_malformed_by_kind(text: str, kind: str) -> None:
    read = read_step(text, TOOLS, FULL)
    assert isinstance(read, Malformed)
    assert read.kind == kind, read


def test_the_message_names_what_was_found_and_what_there_is() -> None:
    read = read_step(step("python"), TOOLS, FULL)
    assert isinstance(read, Malformed)
    assert read.message == "there is no tool 'python', only calculator, oracle"


NESTED = {
    "code in the context": PLAIN.replace(
        "6, 7", "the program\n```python\nTool Name: oracle\nContext: x\n```"
    ),
    "a longer fence around a shorter one": PLAIN.replace(
        "6, 7", "see\n````\n```\nSub-Goal: no\n```\n````"
    ),
    "a fence in a fence of the same length": "```\n"
    + PLAIN.replace("6, 7", "see\n```python\nx = 1\n```")
    + "\n```",
    "tildes": PLAIN.replace("6, 7", "see\n~~~\nTool Name: oracle\n~~~"),
}


@pytest.mark.parametrize("text", NESTED.values(), ids=NESTED)
def test_a_label_inside_of_a_fence_is_text(text: str) -> None:
    read = read_step(text, TOOLS, FULL)
    assert isinstance(read, NextStep), read
    assert read.tool is CALCULATOR and read.sub_goal == "multiply"


def test_a_fence_that_stays_open_hides_the_labels_after_it() -> None:
    read = read_step(PLAIN.replace("6, 7", "```python\nx = 1"), TOOLS, FULL)
    assert isinstance(read, Malformed) and read.kind == "missing_section"


def test_a_compact_step_needs_two_lines() -> None:
    read = read_step("Sub-Goal: multiply\nTool Name: oracle", TOOLS, COMPACT)
    assert isinstance(read, NextStep)
    assert (read.sub_goal, read.tool.name, read.context) == ("multiply", "oracle", "")


@given(st.text(max_size=300))
def test_no_text_makes_the_parsers_raise(text: str) -> None:
    assert isinstance(read_step(text, TOOLS, FULL), NextStep | Malformed)
    assert isinstance(read_command(text, Scripted()), dict | Malformed)
    read_verdict(text)
    read_code(text)


@given(st.lists(st.sampled_from([*PLAIN.splitlines(), "```", "words", ""]), max_size=12))
def test_a_step_names_a_tool_that_stands_on_the_last_line(lines: list[str]) -> None:
    read = read_step("\n".join(lines), TOOLS, FULL)
    if isinstance(read, NextStep):
        written = [line for line in lines if line.strip("` ")]
        assert written[-1] == "Tool Name: calculator"


COMMANDS: dict[str, Any] = {
    '{"query": "6*7"}': {"query": "6*7"},
    '```json\n{"query": "6*7"}\n```': {"query": "6*7"},
    'Here it is:\n```\n{"query": "a\\nb"}\n```\nDone.': {"query": "a\nb"},
    'calculator(query="6*7")': {"query": "6*7"},
    "tool.execute(query='''a\nb''')": {"query": "a\nb"},
    '```python\ncalculator(query="f(x) = (x+1)")\n```': {"query": "f(x) = (x+1)"},
    '```json\n{"query": "draft"}\n```\n```json\n{"query": "last"}\n```': {"query": "last"},
    '<think>{"query": "no"}</think>{"query": "yes"}': {"query": "yes"},
}


@pytest.mark.parametrize(("text", "arguments"), COMMANDS.items())
def test_a_command_is_read_as_data(text: str, arguments: Any) -> None:
    assert read_command(text, Scripted()) == arguments


BAD_COMMANDS = {
    "": "empty",
    "```json\n```": "empty",
    "Use the calculator with 6*7": "not_a_command",
    '{"query": "6*7"': "not_a_command",
    '{"query": NaN}': "not_a_command",
    '["6*7"]': "not_a_command",
    "1 + 1": "not_a_command",
    'x = calculator(query="1")': "not_a_command",
    'oracle(query="1")': "wrong_tool",
    'print(calculator(query="1"))': "wrong_tool",
    '(lambda: 0)(query="1")': "wrong_tool",
    '{"query": 42}': "arguments",
    '{"query": "1", "timeout": 9}': "arguments",
    "{}": "arguments",
    'calculator("6*7")': "arguments",
    'calculator(**{"query": "1"})': "arguments",
    "calculator(query=6*7)": "arguments",
    "calculator(query=open('x').read())": "arguments",
    "calculator(query=__import__('os').getcwd())": "arguments",
    f'{{"query": "{"x" * 501}"}}': "arguments",
    f'{{"query": "{"x" * MAX_COMMAND_CHARACTERS}"}}': "too_long",
    "calculator(query=" + "[" * 20 + "]" * 20 + ")": "too_deep",
    '{"query": ' + "[" * 20 + "]" * 20 + "}": "too_deep",
    "calculator(query=" + "[" * 5_000 + "]" * 5_000 + ")": "not_a_command",
    '{"query": ' + "[" * 5_000 + "]" * 5_000 + "}": "not_a_command",
    "calculator(query=a" + ".b" * 8_000 + ")": "not_a_command",
    "calculator(query=1" + "+1" * 8_000 + ")": "not_a_command",
    "calculator(query=" + "-" * 10_000 + "1)": "not_a_command",
    "calculator(query=" + "9" * 10_000 + ")": "not_a_command",
}


@pytest.mark.parametrize(("text", "kind"), BAD_COMMANDS.items(), ids=range(len(BAD_COMMANDS)))
def test_a_command_that_is_no_data_is_malformed_by_kind(text: str, kind: str) -> None:
    read = read_command(text, Scripted())
    assert isinstance(read, Malformed)
    assert read.kind == kind, read


@given(st.text(max_size=200))
def test_any_query_survives_the_way_through_json(query: str) -> None:
    text = f"```json\n{json.dumps({'query': query})}\n```"
    assert read_command(text, Scripted()) == {"query": query}


VERDICTS = {
    "Conclusion: STOP": True,
    "Conclusion: CONTINUE": False,
    "All there.\n**Conclusion:** STOP.": True,
    "**Conclusion: continue**": False,
    "### Conclusion - Stop": True,
    "Conclusion: STOP\nWait, no.\nConclusion: CONTINUE": False,
    "Conclusion: CONTINUE\n...\nConclusion: STOP\n": True,
    "<think>Conclusion: STOP</think>Conclusion: CONTINUE": False,
    "<think>Conclusion: STOP": None,
    "": None,
    "STOP": None,
    "We should stop here.": None,
    "The conclusion is that we must not stop": None,
    "Conclusion: STOP unless it is wrong": None,
    "**Conclusion:**\nSTOP": True,
    "Conclusion:\n\nSTOP": None,
    "Conclusion: maybe": None,
}


@pytest.mark.parametrize(("text", "verdict"), VERDICTS.items())
def test_the_last_conclusion_of_a_verifier_counts(text: str, verdict: bool | None) -> None:
    assert read_verdict(text) is verdict


PROGRAMS = {
    "```python\nprint(1)\n```": "print(1)",
    "Text\n```py\na = 1\n\nprint(a)\n```\nmore": "a = 1\n\nprint(a)",
    "```python\nprint(1)\n```\n```python\nprint(2)\n```": "print(2)",
    "```python\nprint(1)\n```\nIt prints\n```\n1\n```": "print(1)",
    "```\nprint(3)\n```": "print(3)",
    "```python\nexit_code = quit_after(3)\nprint('exit()')\n```": "exit_code = quit_after(3)\n"
    "print('exit()')",
    "````python\ns = '''\n```\n'''\nprint(s)\n````": "s = '''\n```\n'''\nprint(s)",
    "```python\nprint(1)": None,
    "```python\n\n```": None,
    "```bash\nls\n```": None,
    "print(1)": None,
    "": None,
}


@pytest.mark.parametrize(("text", "code"), PROGRAMS.items())
def test_the_last_python_fence_is_the_program_as_it_was_written(
    text: str, code: str | None
) -> None:
    assert read_code(text) == code


@pytest.mark.parametrize(
    "piece", ["\n", "*", "\n*", "```\n", "Conclusion:", "<think>", "Context:\n", "#"]
)
def test_texts_of_any_size_are_read_in_a_moment(piece: str) -> None:
    text = f"Conclusion{piece * 60_000}"
    assert read_verdict(text) is None and read_code(text) is None
    assert isinstance(read_step(text, TOOLS, FULL), Malformed)
    assert isinstance(read_command(text, Scripted()), Malformed)


def test_what_is_thought_is_not_said() -> None:
    assert after_thinking("<think>a</think>b") == "b"
    assert after_thinking("a</think>b") == "b"
    assert after_thinking("<think>a") is None
    assert after_thinking("b") == "b"


def test_odd_literals_of_a_command_are_not_warned_of() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        read_command(f"execute(query='\\d', n=[{'1if 1else 1, ' * 500}])", Scripted())
    assert not seen
