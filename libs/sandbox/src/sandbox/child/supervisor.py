"""Watches one snippet from its start to the removal of its last trace.

The result is one frame: four bytes of length, JSON, then the bytes of both streams.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from sandbox.child import quota, snippet, tree
from sandbox.child.confine import Limits, Walls

_SETUP_S = 60.0
_PATIENCE_S = 60.0
_ROOM_BYTES = 1 << 20
_DISK_INTERVAL_S = 0.05
_CHUNK = 65536
_STATUS = 3
_STATUS_BYTES = 1024
_CHILD_SUBREAPER = 36


def supervise(job: socket.socket, header: Mapping[str, Any], walls: Walls, work: str) -> NoReturn:
    """Runs the snippet that comes over `job`, sends its result and ends the process."""
    try:
        user = header["user"] if walls.drops_user else None
        os.mkdir(work, 0o700)
        try:
            _make_room(work, user, header["disk_bytes"], walls)
            watch = _start(job, header, walls, work, user)
            result = watch.follow()
        finally:
            clear(work, walls)
        if result is not None:
            job.sendall(result)
        job.close()
    except BaseException as error:
        with contextlib.suppress(BaseException):
            job.sendall(_frame({"ending": "broken", "what": f"{type(error).__name__}: {error}"}))
    finally:
        os._exit(0)


def _make_room(work: str, user: int | None, size: int, walls: Walls) -> None:
    """Gives the folder `work` to `user`, with `size` bytes to fill."""
    if walls.quotas:
        quota.mount(work, user, size=size, entries=tree.MOST_ENTRIES)
        return
    if user is not None:
        os.chown(work, user, user)
    if (room := _room(work)) < size:
        raise OSError(f"{room} bytes are free for the working folder")


def _room(folder: str | int) -> int:
    """Bytes that anybody can still write to the file system; 0 without room for another file."""
    facts = os.statvfs(folder)
    return 0 if facts.f_files and not facts.f_favail else facts.f_bavail * facts.f_frsize


def clear(work: str, walls: Walls) -> None:
    """Deletes the working folder; what can't be deleted is told, and changes no result."""
    try:
        if walls.quotas:
            with contextlib.suppress(OSError):  # nothing is mounted yet
                quota.unmount(work)
        tree.remove(work)
    except OSError as error:
        print(f"left behind: {error}", file=sys.stderr, flush=True)


def _start(
    job: socket.socket, header: Mapping[str, Any], walls: Walls, work: str, user: int | None
) -> _Watch:
    if not walls.calls:
        # Without walls a snippet may leave processes; they become children of this one.
        ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    pipes = [os.pipe() for _ in range(3)]
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_snippet(job, header, walls, work, user, supervisor, [end for _, end in pipes])
    for _, end in pipes:
        os.close(end)
    out, err, status = (end for end, _ in pipes)
    return _Watch(pid, job, header, walls, work, (out, err, status))


def _become_snippet(
    job: socket.socket,
    header: Mapping[str, Any],
    walls: Walls,
    work: str,
    user: int | None,
    supervisor: int,
    ends: list[int],
) -> NoReturn:
    out, err, status = ends
    try:
        os.setsid()
        code = _receive(job, header["code_bytes"]).decode("utf-8", "surrogatepass")
        stdin = _receive(job, header["stdin_bytes"])
        os.dup2(_stdin(stdin), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        # Looked up before the walls hide /proc, closed once they are up.
        inherited = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > _STATUS]
        limits = Limits(cpu_s=header["cpu_s"], memory=header["memory"], file=header["file_bytes"])
        walls.confine(work, user, limits, supervisor)
        os.dup2(status, _STATUS)
        status = _STATUS
        for fd in inherited:
            with contextlib.suppress(OSError):
                os.close(fd)
        snippet.prepare(work, links=walls.boxed or not walls.calls)
        walls.close_calls(user)
        os.write(status, snippet.STARTED)
    except BaseException as error:
        os.write(status, snippet.BROKEN + f"{type(error).__name__}: {error}".encode()[:500])
        os._exit(snippet.FAILED)
    snippet.run(code, status)


def _receive(job: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = job.recv(size - len(parts))
        if not part:
            raise EOFError("the job was cut off")
        parts += part
    return bytes(parts)


def _stdin(data: bytes) -> int:
    """A descriptor to read `data` from, which nobody can write to."""
    if not data:
        return os.open("/dev/null", os.O_RDONLY)
    add_seals, no_seal_shrink_grow_write = 1033, 0xF
    file = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(file, "wb", closefd=False) as stream:
        stream.write(data)
    os.lseek(file, 0, os.SEEK_SET)
    fcntl.fcntl(file, add_seals, no_seal_shrink_grow_write)
    return file


class _Watch:
    """One running snippet; `follow` returns when nothing of it runs any more."""

    def __init__(
        self,
        pid: int,
        job: socket.socket,
        header: Mapping[str, Any],
        walls: Walls,
        work: str,
        pipes: tuple[int, int, int],
    ) -> None:
        out, err, status = pipes
        self._walls = walls
        self._pid = pid
        self._header = header
        self._streams = {out: bytearray(), err: bytearray()}
        self._out, self._err, self._status = out, err, status
        self._remarks = bytearray()
        self._job = job
        self._folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        self._process = os.pidfd_open(pid)
        self._started: float | None = None
        self._waited_before = 0.0
        self._truncated = False
        for fd in (out, err, status):
            os.set_blocking(fd, False)

    def follow(self) -> bytes | None:
        """The result's frame, or None when nobody waits for it any more."""
        forked = time.monotonic()
        ending, what = self._wait(forked)
        seconds = time.monotonic() - (self._started or forked) - self._waited()
        exit_status = self._kill()
        for fd in (self._out, self._err, self._status):
            self._read(fd)
        if ending == "cancelled":
            return None
        if ending == "ended":
            ending, what = self._judge(exit_status)
        out, err = self._streams[self._out], self._streams[self._err]
        facts = {
            "ending": ending,
            "what": what,
            "code": os.waitstatus_to_exitcode(exit_status),
            "seconds": seconds,
            "out_bytes": len(out),
        }
        return _frame(facts, bytes(out) + bytes(err))

    def _wait(self, forked: float) -> tuple[str, str]:
        poll = select.poll()
        for fd in (self._out, self._err, self._status, self._process):
            poll.register(fd, select.POLLIN)
        poll.register(self._job, select.POLLRDHUP)
        while True:
            left = self._left(forked)
            # Also without time left: what ended before this process got its turn was not late.
            interval = left if self._walls.quotas else min(_DISK_INTERVAL_S, left)
            for fd, _ in poll.poll(1000 * max(0.0, interval)):
                if fd == self._process:
                    return "ended", ""
                if fd == self._job.fileno():
                    return "cancelled", ""
                if not self._read(fd):
                    poll.unregister(fd)
                if self._truncated:
                    return "truncated", ""
            if too_much := self._too_much():
                return "denied", too_much
            if left <= 0:
                if self._started is None:
                    return "broken", "no start in time"
                if self._waited() >= _PATIENCE_S:
                    return "broken", f"waited {_PATIENCE_S:g} s for a processor"
                return "timed_out", ""

    def _too_much(self) -> str | None:
        """What is too much in the folder, where no file system holds it."""
        if self._walls.quotas:
            return None
        return tree.overfull(self._folder, self._header["disk_bytes"])

    def _left(self, forked: float) -> float:
        """Seconds that the snippet has left; what it waits for a processor is not its time."""
        now = time.monotonic()
        if self._started is None:
            return forked + _SETUP_S - now
        left: float = self._started + self._header["wall_s"] - now
        return left if left > 0 else left + min(self._waited(), _PATIENCE_S)

    def _waited(self) -> float:
        """Seconds since the start that the thread which waited most waited for a processor.

        From the second number of `schedstat` (proc(5)), in nanoseconds; 0 on a kernel without.
        """
        most = 0
        tasks = f"/proc/{self._pid}/task"
        with contextlib.suppress(OSError):
            for thread in os.listdir(tasks):
                with (
                    contextlib.suppress(OSError, IndexError),
                    open(f"{tasks}/{thread}/schedstat", encoding="ascii") as numbers,
                ):
                    most = max(most, int(numbers.read().split()[1]))
        return max(0.0, most / 1e9 - self._waited_before)

    def _read(self, fd: int) -> bool:
        """Takes what is there, at most one chunk; False at the end of the stream."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        if fd == self._status:
            self._remarks += data[: _STATUS_BYTES - len(self._remarks)]
            if self._started is None and self._remarks.startswith(snippet.STARTED):
                self._waited_before = self._waited()
                self._started = time.monotonic()
            return bool(data)
        stream, most = self._streams[fd], self._header["output_bytes"]
        room = most - len(stream)
        stream += data[:room]
        self._truncated |= len(data) > room
        return bool(data)

    def _judge(self, exit_status: int) -> tuple[str, str]:
        """The ending of a snippet that ended by itself, and its reason."""
        remarks = bytes(self._remarks)
        if not remarks.startswith(snippet.STARTED):
            reason = remarks.removeprefix(snippet.BROKEN).decode("utf-8", "replace")
            return "broken", reason or f"ended before its start, wait status {exit_status}"
        if self._truncated:
            return "truncated", ""
        if os.WIFSIGNALED(exit_status):
            # A snippet can't send SIGKILL, not even to itself: the processor time was used up to
            # the last, or the machine has less memory than the limits allow.
            used = _seconds_of_children()
            if os.WTERMSIG(exit_status) == signal.SIGXCPU or used >= self._header["cpu_s"]:
                return "timed_out", ""
            if os.WTERMSIG(exit_status) == signal.SIGKILL:
                return "broken", "killed from outside, as by a kernel that is out of memory"
        elif os.WEXITSTATUS(exit_status) == snippet.FAILED:
            remark = remarks[1:]
            if remark.startswith(snippet.MEMORY):
                return "out_of_memory", ""
            if remark.startswith(snippet.DENIED):
                too_much = self._too_much()
                # A full file system that the snippet had to itself is its own doing.
                shared = not (self._walls.quotas or self._walls.boxed)
                if not too_much and shared and _room(self._folder) < _ROOM_BYTES:
                    return "broken", "the file system of the working folders is full"
                return "denied", too_much or remark[1:].decode("utf-8", "replace")
        return "ran", ""

    def _kill(self) -> int:
        """Ends the snippet, its process group and whatever it left; returns its wait status."""
        for target in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                target(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        while not self._walls.calls:
            with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
                left = file.read().split()
            if not left:
                break
            for pid in left:
                os.kill(int(pid), signal.SIGKILL)
                os.waitpid(int(pid), 0)
        return status


def _seconds_of_children() -> float:
    """Processor seconds of the children that were waited for."""
    times = os.times()
    return times.children_user + times.children_system


def _frame(facts: Mapping[str, Any], streams: bytes = b"") -> bytes:
    text = json.dumps(facts).encode()
    return len(text).to_bytes(4, "little") + text + streams
