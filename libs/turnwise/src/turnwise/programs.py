"""A model's program run in the sandbox, and what came of it in words.

A program that fails, is stopped or is denied something is a result, which the policy sees; only a
sandbox that is broken loses the episode.
"""

from __future__ import annotations

from typing import Protocol

from sandbox.result import (
    Denied,
    OutOfMemory,
    OutputTruncated,
    Ran,
    Result,
    SandboxBroken,
    TimedOut,
)

from turnwise.episode import Boundary, BoundaryError, crossing
from turnwise.printable import cut_middle

OUTPUT_CHARACTERS = 4_000
ERROR_CHARACTERS = 1_000


class Runs(Protocol):
    """What runs a program: `sandbox.Sandbox`."""

    async def run(self, code: str) -> Result: ...


async def run_program(sandbox: Runs, code: str) -> tuple[str, str | None]:
    """What a program printed, or why there is nothing, in words; and in a word, `timed_out`.

    Raises:
        BoundaryError: at `Boundary.SANDBOX`, it is broken.
    """
    async with crossing(Boundary.SANDBOX):
        return _told(await sandbox.run(code))


def _told(ran: Result) -> tuple[str, str | None]:
    """What the planner is told, and why there is no result."""
    out = cut_middle(ran.out.strip(), OUTPUT_CHARACTERS)
    match ran:
        case SandboxBroken():
            raise BoundaryError(Boundary.SANDBOX, ran.what)
        case Ran(code=0):
            return (out, None) if out else ("The program printed nothing.", "silent")
        case Ran():
            words, failed = f"The program ended with exit code {ran.code}", "error"
        case TimedOut():
            words, failed = f"The program was stopped after {ran.limit_s:g} s", "timed_out"
        case OutOfMemory():
            words, failed = f"The program needed more than {ran.limit_mb} MiB", "out_of_memory"
        case OutputTruncated():
            words, failed = f"The program printed more than {ran.limit_kb} KiB", "output_truncated"
        case Denied():
            words, failed = f"The program may not do that: {ran.what}", "denied"
    err = cut_middle(ran.err.strip(), ERROR_CHARACTERS) if ran.err.strip() else ""
    parts = [f"{words}."]
    parts += [f"Errors:\n{err}"] if err else []
    parts += [f"Printed:\n{out}"] if out else []
    return "\n".join(parts), failed
