"""What a tier needs, and the program that shows whether its walls hold."""

from __future__ import annotations

import os

from sandbox.box import bubblewrap
from sandbox.child import landlock, seccomp
from sandbox.result import Tier

SELF_CHECK = """
import os, signal, socket
def passes(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return False
    return True
broken = [name for name, passed in {
    "read": passes(open, "/etc/passwd"),
    "write": passes(open, "/tmp/turnwise-self-check", "w"),
    "network": passes(socket.socket),
    "process": passes(os.fork),
    "signal": passes(os.kill, os.getppid(), 0),
    "work": not passes(open, "own", "w"),
}.items() if passed]
print(*broken or ["held"])
"""


def unmet(tier: Tier) -> str | None:
    """The first need of `tier` that this machine does not meet, in words; None if it may work."""
    if tier == "none":
        return None
    if not seccomp.supported():
        return f"no system call table for {os.uname().machine}"
    if tier == "landlock" and landlock.version() == 0:
        return "the kernel has no Landlock, or it is switched off"
    if tier == "namespaces" and bubblewrap() is None:
        return "bwrap is not installed (Debian: bubblewrap)"
    return None
