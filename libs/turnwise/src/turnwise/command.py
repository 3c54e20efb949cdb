"""What every command does around its work: one error line, the right exit code.

| code | meaning          | raised as         |
|------|------------------|-------------------|
| 0    | ok               |                   |
| 2    | usage or config  | ConfigError       |
| 3    | preflight failed | PreflightError    |
| 4    | run failed       | RunError          |
| 130  | interrupted      | KeyboardInterrupt |
"""

from __future__ import annotations

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
        return command(argv) or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except tuple(kind for kind, _ in EXIT_CODES) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
