"""Every command that a document names can be run as written from a checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# `./pants run FOLDER:NAME -- ...`, `python -m MODULE ...`, `python FILE ...`; a trailing backslash
# goes on, `#` or two spaces begin a remark.
COMMAND = re.compile(r"(?:\./pants run ([\w/.-]+:\w+)|python -m ([\w.]+))((?:\\\n|[^\n`])*)")
REMARK = re.compile(r"\s#.*|\s{2,}\w.*")
OPTION = re.compile(r"(?<=\s)--[a-z][\w.-]*")
# What libs/*/BUILD name as an entry point.
LIBRARIES = {
    "libs/tokendelta:audit": "tokendelta.command",
    "libs/toolparse:explain": "toolparse.explain",
    "libs/sandbox:sandbox": "sandbox",
}
# They list a method's options where one is named.
ANY_METHOD = {f"libs/turnwise:{name}" for name in ("train", "check", "convert", "evaluate")}
# A reader's own method, and one that is here.
OWN = dict.fromkeys(
    ("my_agent:MyAgent", "package.module:Class", "NAME"), "examples.order_desk:OrderDesk"
)


def documents() -> list[Path]:
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not {"dist", "node_modules"} & set(path.relative_to(ROOT).parts)
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    )


def named(text: str) -> Iterator[tuple[str, frozenset[str]]]:
    """The commands of a document: what is started, and the options that it is given."""
    for target, module, rest in COMMAND.findall(text):
        if target.startswith("third_party/"):
            continue
        line = " ".join(REMARK.sub("", part) for part in rest.split("\\\n"))
        method = re.search(r"--method (\S+)", line) if target in ANY_METHOD else None
        name = f"{target or module} --method {OWN.get(method[1], method[1])}" if method else target
        yield name or module, frozenset(OPTION.findall(f" {line}"))


def walked() -> dict[str, tuple[str, frozenset[str]]]:
    """By "DOCUMENT: COMMAND": the command, and every option that the document gives it."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for document in documents():
        for command, options in named(document.read_text(encoding="utf-8")):
            key = f"{document.relative_to(ROOT)}: {command}"
            found[key] = (command, options | found.get(key, ("", frozenset()))[1])
    return found


COMMANDS = walked()


def started(command: str) -> list[str]:
    target, *method = command.split()
    if ":" not in target:
        return ["-m", target]
    if target in LIBRARIES:
        return ["-m", LIBRARIES[target]]
    folder, _, name = target.partition(":")
    return [str(ROOT / folder / f"{name}.py"), *method]


@cache
def help_of(command: str) -> str:
    done = subprocess.run(
        [sys.executable, *started(command), "--help"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path),
            "COLUMNS": "200",
        },
    )
    assert done.returncode == 0, f"{command} --help ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def test_the_walk_finds_the_commands_of_the_first_page() -> None:
    assert "README.md: apps/trainers/tau:train" in COMMANDS
    assert len(COMMANDS) > 50


@pytest.mark.parametrize("place", COMMANDS)
def test_a_documented_command_runs_and_has_the_options_it_is_given(place: str) -> None:
    command, options = COMMANDS[place]
    text = help_of(command)
    # The method's name may be left out in front of an option of its own.
    unknown = [
        name
        for name in options - {"--help", "--method"}
        if not re.search(rf"--([\w-]+\.)*{name[2:]}(?![\w-])", text)
    ]
    assert not unknown, f"{place} is given {sorted(unknown)}, which its --help does not name"
