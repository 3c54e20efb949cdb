"""What every command does around its work: one error line, the right exit code.

| code | meaning          | raised as         |
|------|------------------|-------------------|
| 0    | ok               |                   |
| 2    | usage or config  | ConfigError       |
| 3    | preflight failed | PreflightError    |
| 4    | run failed       | RunError          |
| 130  | interrupted      | KeyboardInterrupt |
| 141  | nobody reads its output any more (`| head`) | BrokenPipeError |
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Sequence

from turnwise.config import ConfigError
from turnwise.episode import BoundaryError
from turnwise.printable import printable


class PreflightError(Exception):
    """The machine or its services can't carry the run; nothing was started."""


class RunError(Exception):
    """The run began and could not go on; what it has done is on disk."""


class StopRun(RunError):
    """No further episode can be played, through no fault of the policy: a spend cap, a quota.

    Raised by what plays an episode; the others are cancelled, and what was done so far stays whole.
    """


EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (ConfigError, 2),
    (PreflightError, 3),
    (RunError, 4),
    (BoundaryError, 4),
)


def run_command(command: Callable[[Sequence[str]], int | None], argv: Sequence[str]) -> int:
    """Runs `command(argv)` and turns its exceptions into a line on stderr and an exit code."""
    try:
        try:
            return _run(command, argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        gone = [stream for stream in (sys.stdout, sys.stderr) if _unread(stream.fileno())]
        if not gone:
            raise
        # What is still in a buffer would raise again when Python ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in gone:
            os.dup2(nowhere, stream.fileno())
        return 141


def _unread(descriptor: int) -> bool:
    """Whether nobody reads from the other end of a pipe."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _run(command: Callable[[Sequence[str]], int | None], argv: Sequence[str]) -> int:
    try:
        return command(argv) or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except tuple(kind for kind, _ in EXIT_CODES) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
