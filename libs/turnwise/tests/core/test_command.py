"""A reader that leaves ends a command quietly; nothing else that breaks does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from turnwise.command import run_command

PROGRAM = """
import sys
from turnwise.arguments import parse_args
from turnwise.command import run_command
from turnwise.config import CommandConfig

def show(argv):
    parse_args(CommandConfig, argv, prog="own", description="Does nothing. " * 50)

def talk(argv):
    print("many words " * 100_000)

sys.exit(run_command({"help": show, "talk": talk}[sys.argv[1]], ["--help"]))
"""


@pytest.mark.parametrize("command", ["help", "talk"])
@pytest.mark.parametrize("errors", [False, True])
def test_output_that_nobody_reads_ends_without_a_traceback(command: str, errors: bool) -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, command],
        stdout=write,
        stderr=write if errors else subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    os.close(write)
    assert ended.returncode == 141
    assert not ended.stderr


def test_another_pipe_that_breaks_is_a_bug() -> None:
    def broken(argv: object) -> None:
        raise BrokenPipeError(32, "a child is gone")

    with pytest.raises(BrokenPipeError):
        run_command(broken, [])
