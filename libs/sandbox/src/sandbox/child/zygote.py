"""An interpreter that waits with its libraries imported and forks twice per snippet.

The first fork is the supervisor: it makes the working folder, watches the snippet, kills and
reaps it, deletes the folder and sends the result. The second is the snippet, which reads its code
itself. Neither the code nor the output ever reaches the memory of the zygote, so a snippet finds
nothing of an earlier one in its own. A supervisor also ends its snippet when the other side of
its socket is closed, which is how cancellation works and what happens when the owner dies.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from sandbox.child import landlock, quota, snippet, tree
from sandbox.child.confine import Walls
from sandbox.child.supervisor import clear, supervise


class Promised(MetaPathFinder):
    """Finds the packages that snippets were promised; all others do not exist.

    With the folders on `sys.path`, a library's optional import of something installed but
    unreadable would end in a refusal where the library expects an ImportError.
    """

    def __init__(self, names: Sequence[str], folders: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._folders = list(folders)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The top-level module `name`, or None; what is in a package is found through it."""
        if path is None and name in self._names:
            return PathFinder.find_spec(name, self._folders, target)
        return None


def main(control: socket.socket, settings: dict[str, Any]) -> None:
    """Serves jobs from `control` until its other side is closed.

    Args:
        control: Sequenced packets; one job each: a JSON header and the descriptor of its socket.
        settings: `path` and `importable` as `Promised` takes them, `packages` (to import now),
            `read`, `listed`, `base` and `calls` as `Walls` takes them, `boxed` (whether nothing of
            the machine's files is in sight).
    """
    base = settings["base"]
    os.makedirs(base, mode=0o711, exist_ok=True)
    # First of all: libraries may start threads.
    quotas = settings["calls"] and quota.enter(base)
    sys.meta_path.append(Promised(settings["importable"], settings["path"]))
    for name in settings["packages"]:
        importlib.import_module(name)
    # The walls keep a descriptor for each file that snippets may read.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    walls = Walls(
        read=settings["read"],
        listed=settings["listed"],
        base=base,
        calls=settings["calls"],
        boxed=settings["boxed"],
        quotas=quotas,
    )
    snippet.own_modules()
    snippet.generators()
    # What is here now stays: not walking it saves the forks from copying its pages.
    gc.collect()
    gc.freeze()
    ready = {"landlock": landlock.version(), "quotas": quotas}
    control.send(json.dumps(ready).encode())
    try:
        _serve(control, walls, base)
    finally:
        tree.remove(base)


def _serve(control: socket.socket, walls: Walls, base: str) -> None:
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    running: dict[int, str] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake, select.POLLIN)
    serving = True
    while serving or running:
        for fd, _ in poll.poll():
            if fd == wake:
                os.read(wake, 4096)
                _reap(running, walls)
            elif not (serving := _accept(control, walls, base, running)):
                poll.unregister(control)


def _accept(control: socket.socket, walls: Walls, base: str, running: dict[int, str]) -> bool:
    """Forks a supervisor for the next job; False when there will be no more."""
    message, descriptors, _, _ = socket.recv_fds(control, 65536, 1)
    if not message:
        return False
    header = json.loads(message)
    work = os.path.join(base, header["id"])
    (job,) = descriptors
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        supervise(socket.socket(fileno=job), header, walls, work)
    os.close(job)
    running[pid] = work
    return True


def _reap(running: dict[int, str], walls: Walls) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        work = running.pop(pid, None)
        if status != 0 and work is not None:
            # The supervisor was killed; its snippet dies with it.
            clear(work, walls)
