"""Runs a command that must not outlive the process that wants it.

    python guard.py PARENT WORD...

The words run in a session of their own. It is ended, SIGTERM first and SIGKILL after `GRACE_S`,
when the process PARENT is gone, however it ended, when this one gets SIGTERM, or when the command
itself ends. The exit code is the command's, 128 + n where signal n ended it.

It stands alone: any Python runs it, without our packages.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

POLL_S = 0.2
GRACE_S = 10.0
PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h: the signal that a process gets when the one that started it ends."""


def main(argv: Sequence[str]) -> int:
    """The command."""
    parent = int(argv[0])
    signal.signal(signal.SIGTERM, _stop)
    with subprocess.Popen(argv[1:], start_new_session=True, preexec_fn=_die_with_guard) as command:
        try:
            while command.poll() is None and os.getppid() == parent:
                time.sleep(POLL_S)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _end(command)
    code = command.returncode
    return code if code >= 0 else 128 - code


def _stop(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _die_with_guard() -> None:
    """Between fork and exec: this process has one thread, so that is safe."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(command: subprocess.Popen[bytes]) -> None:
    """Ends whoever is left of the session's first group, the command first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(GRACE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
