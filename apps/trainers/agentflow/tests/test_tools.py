"""Tools: found, named, checked and run by one table."""

from __future__ import annotations

import json
import random
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field
from sandbox import (
    Denied,
    OutOfMemory,
    OutputTruncated,
    Ran,
    SandboxBroken,
    SandboxConfig,
    TimedOut,
)
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError

from apps.trainers.agentflow.executor import run_tool
from apps.trainers.agentflow.prompts import make_prompts
from apps.trainers.agentflow.prompts.base import describe
from apps.trainers.agentflow.tests.scripted import Model, Oracle, Scripted
from apps.trainers.agentflow.toolbox import Toolbox, discover, make_toolbox
from apps.trainers.agentflow.tools import tool as tool_module
from apps.trainers.agentflow.tools.base_generator import BaseGenerator
from apps.trainers.agentflow.tools.python_coder import PythonCoder
from apps.trainers.agentflow.tools.search import Search
from apps.trainers.agentflow.tools.tool import Tool, ToolParts, ToolResult

DOCUMENTS = [
    {"title": "Alan Turing", "text": "Alan Turing was a mathematician who broke ciphers."},
    {"title": "Otter", "text": "An otter is a mammal that lives in rivers and eats fish."},
    {"text": "Rivers carry water from mountains to the sea."},
]
HERE = f"{__name__}:Third"


class Third(Scripted):
    """A tool of somebody else."""

    name = "third"


class Rooms:
    """A sandbox that says what it is told."""

    def __init__(self, result: Any, **limits: Any) -> None:
        self.config = SandboxConfig(**limits)
        self.missing: dict[str, str] = {}
        self.tier = "landlock"
        self.result = result
        self.codes: list[str] = []

    async def run(self, code: str) -> Any:
        self.codes.append(code)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def outcome(kind: Any, out: str = "", err: str = "", **facts: Any) -> Any:
    return kind(out=out, err=err, seconds=0.1, tier="landlock", **facts)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "documents.jsonl"
    path.write_text("\n".join(map(json.dumps, DOCUMENTS)) + "\n\n")
    return path


def parts(answer: str = "", sandbox: Any = None, documents: Path | None = None) -> ToolParts:
    models = {role: Model(role, [answer]) for role in ("base_generator", "coder")}
    return ToolParts(
        models=models, prompts=make_prompts("full"), sandbox=sandbox, documents=documents
    )


async def test_every_module_of_the_folder_gives_the_tool_that_it_names() -> None:
    assert discover() == {
        "base_generator": BaseGenerator,
        "python_coder": PythonCoder,
        "search": Search,
    }


def test_a_tool_from_elsewhere_is_named_by_its_import_path() -> None:
    toolbox = make_toolbox(["base_generator", HERE], parts())
    assert toolbox.names == ("base_generator", "third")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["calculator"], "'calculator' is neither one of base_generator, python_coder, search"),
        (["nowhere.at_all:Tool"], "nowhere.at_all:Tool: No module named"),
        ([f"{__name__}:DOCUMENTS"], "is no class of tool"),
        (["base_generator", "base_generator"], "two are named base_generator"),
        ([], "there must be at least one"),
        (["python_coder"], "python_coder needs a sandbox"),
        (["search"], "search needs the option documents"),
    ],
)
def test_a_toolbox_that_can_not_be_made_says_why(names: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_toolbox(names, parts())


def test_a_tool_without_its_model_says_so() -> None:
    empty = ToolParts(models={}, prompts=make_prompts("full"), sandbox=None)
    for name in ("base_generator", "python_coder"):
        with pytest.raises(ConfigError, match=f"{name} needs a model of the role"):
            make_toolbox([name], empty)


@pytest.mark.parametrize("name", ["Calculator", "a tool", "", "2nd", "x" * 65])
def test_a_name_that_is_no_identifier_is_refused(name: str) -> None:
    tool = Scripted()
    tool.name = name  # type: ignore[misc]
    with pytest.raises(ConfigError, match="lower-case letters"):
        Toolbox([tool])


@pytest.mark.parametrize("written", ["oracle", " Oracle ", "ORACLE"])
def test_a_name_is_matched_whatever_its_case(written: str) -> None:
    tool = Toolbox([Scripted(), Oracle()]).match(written)
    assert tool is not None and tool.name == "oracle"


@pytest.mark.parametrize("written", ["", "ora", "oracles", "oracle calculator", "base_generator"])
def test_a_name_that_there_is_not_is_no_tool(written: str) -> None:
    assert Toolbox([Scripted(), Oracle()]).match(written) is None


def test_a_tool_is_described_with_its_schema_and_limits() -> None:
    rooms: Any = Rooms(None, wall_s=5, memory_mb=256)
    tool = PythonCoder.build(parts(sandbox=rooms))
    assert tool.facts() == {"isolation": "landlock"}
    assert tool.runs_code and not BaseGenerator.runs_code
    assert describe(tool) == (
        "### python_coder\n"
        "Has a Python program written for a task and runs it: exact arithmetic, algebra, counting,"
        " search, simulation.\n"
        "- argument query (string, required, characters at most 8000, characters at least 1): What"
        " to compute, in words, with all numbers that it needs.\n"
        "- limit: A program has 5 s and 256 MiB, and no network.\n"
        "- limit: It imports the standard library and numpy, sympy."
    )


async def test_the_example_of_how_to_add_a_tool_is_one() -> None:
    _, example = str(tool_module.__doc__).split("    class Dice", 1)
    example, _ = example.split("\n\nA class in a module", 1)
    source = textwrap.dedent(f"    class Dice{example}")
    names = {**vars(tool_module), "Field": Field, "random": random}
    exec(compile(f"from __future__ import annotations\n{source}", "example", "exec"), names)
    (dice,) = Toolbox([names["Dice"].build(parts())])
    assert "argument count (integer, required, at most 100, at least 1)" in describe(dice)
    first, again = [await run_tool(dice, {"count": 9}, seed=5) for _ in range(2)]
    assert first == again and 9 <= int(first.text) <= 54


async def test_a_tool_that_breaks_is_lost_at_the_tool_server() -> None:
    with pytest.raises(BoundaryError, match="ZeroDivisionError: oh") as caught:
        await run_tool(Scripted(ZeroDivisionError("oh")), {"query": "1"}, seed=1)
    assert caught.value.boundary is Boundary.TOOL_SERVER


async def ask(tool: Tool, query: str = "What is 6*7?") -> ToolResult:
    return await run_tool(tool, {"query": query}, seed=3)


async def test_the_generator_gives_back_what_its_model_says() -> None:
    made = parts("<think>six sevens</think>42")
    result = await ask(BaseGenerator.build(made))
    assert result == ToolResult("42", read_tokens=10, written_tokens=5)
    model: Any = made.models["base_generator"]
    assert "What is 6*7?" in model.prompts[0] and model.seeds == [3]


async def test_a_generator_without_words_has_failed() -> None:
    result = await ask(BaseGenerator.build(parts("<think>six sevens</think> ")))
    assert result.failed == "empty"


async def test_the_coder_s_program_is_run_as_it_was_written() -> None:
    code = "import sys\nx = [exit, quit]\nprint('exit(1); quit()')\nsys.exit(0)"
    rooms = Rooms(outcome(Ran, out=" 42\n", code=0))
    result = await ask(PythonCoder.build(parts(f"So:\n```python\n{code}\n```\nDone.", rooms)))
    assert rooms.codes == [code]
    assert (result.text, result.failed, result.read_tokens) == ("42", None, 10)


OUTCOMES: list[tuple[Any, str, str]] = [
    (outcome(Ran, code=0), "silent", "printed nothing"),
    (outcome(Ran, err="NameError: x", code=1), "error", "exit code 1.\nErrors:\nNameError: x"),
    (outcome(Ran, out="1 2", code=3), "error", "exit code 3.\nPrinted:\n1 2"),
    (outcome(TimedOut, out="half", limit_s=5.0), "timed_out", "after 5 s.\nPrinted:\nhalf"),
    (outcome(OutOfMemory, limit_mb=256), "out_of_memory", "more than 256 MiB"),
    (outcome(OutputTruncated, out="x" * 9_000, limit_kb=64), "output_truncated", "than 64 KiB"),
    (outcome(Denied, what="network"), "denied", "may not do that: network"),
]


@pytest.mark.parametrize(("ran", "failed", "words"), OUTCOMES, ids=[row[1] for row in OUTCOMES])
async def test_a_program_that_fails_is_a_result(ran: Any, failed: str, words: str) -> None:
    result = await ask(PythonCoder.build(parts("```python\nprint(1)\n```", Rooms(ran))))
    assert result.failed == failed and words in result.text
    assert len(result.text) < 6_000


async def test_a_coder_without_a_program_is_a_result() -> None:
    rooms = Rooms(None)
    result = await ask(PythonCoder.build(parts("I can not do that.", rooms)))
    assert result.failed == "no_code" and rooms.codes == []


@pytest.mark.parametrize("broken", [outcome(SandboxBroken, what="no walls"), OSError("no walls")])
async def test_a_broken_sandbox_is_infrastructure(broken: Any) -> None:
    tool = PythonCoder.build(parts("```python\nprint(1)\n```", Rooms(broken)))
    with pytest.raises(BoundaryError, match="no walls") as caught:
        await ask(tool)
    assert caught.value.boundary is Boundary.SANDBOX


async def test_search_finds_by_words_best_first(documents: Path) -> None:
    tool = Search.build(parts(documents=documents))
    result = await ask(tool, "which otter swims in rivers")
    first, second = result.text.split("\n\n")
    assert first.startswith("[1] Otter\nAn otter") and second.startswith("[2]\nRivers carry")
    assert tool.limits[0] == "It knows 3 documents and nothing else."


@pytest.mark.parametrize("query", ["quantum", "the of and", "?!", "\x00"])
async def test_a_search_without_hits_is_a_result(documents: Path, query: str) -> None:
    assert (await ask(Search.build(parts(documents=documents)), query)).failed == "no_hit"


async def test_a_long_document_is_cut_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"text": "otter " * 2_000}))
    result = await ask(Search.build(parts(documents=path)), "otter")
    assert len(result.text) < 1_300 and "characters in all" in result.text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "2: no valid JSON"),
        ('{"title": "x"}', "2: a document is an object with text"),
        ('["text"]', "2: a document is an object with text"),
        ('{"text": " "}', "2: a document is an object with text"),
        ('{"text": "x", "title": 1}', "2: title must be text, found 1"),
    ],
)
def test_a_bad_document_names_file_and_line(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"text": "good"}}\n{content}\n')
    with pytest.raises(ConfigError, match=f"bad.jsonl:{words}"):
        Search.build(parts(documents=path))


def test_no_documents_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    for name, words in (("empty.jsonl", "holds none"), ("missing.jsonl", "No such file")):
        with pytest.raises(ConfigError, match=words):
            Search.build(parts(documents=tmp_path / name))
