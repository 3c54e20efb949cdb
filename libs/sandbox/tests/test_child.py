"""The parts that run inside: the filter's decisions, the folder's removal."""

from __future__ import annotations

import errno
import os
import platform
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandbox.child import seccomp, syscalls, tree

ALLOW, KILL, DONE, EPERM, EAGAIN, ENOSYS = (
    0x7FFF0000,
    0x80000000,
    0x00050000,
    0x00050000 | errno.EPERM,
    0x00050000 | errno.EAGAIN,
    0x00050000 | errno.ENOSYS,
)
X86 = 0xC000003E
PID = 4711


TABLES = syscalls.ALLOWED | syscalls.LINKS | syscalls.MODES | syscalls.ABSENT | syscalls.INSPECTED


def decide(name: str, *arguments: int, modes: bool = False, links: bool = False) -> int:
    """What the filter answers to a call on x86-64."""
    return interpret(number(name), *arguments, modes=modes, links=links)


def number(name: str) -> int:
    return TABLES[name][0]


def interpret(
    call: int, *arguments: int, machine: int = X86, modes: bool = False, links: bool = False
) -> int:
    """Runs the filter's instructions, as linux/filter.h defines them, over one call."""
    full = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("=IIQ6Q", call, machine, 0, *(value % (1 << 64) for value in full))
    program = seccomp.build(PID, modes=modes, links=links)
    accumulator = place = 0
    while True:
        code, if_true, if_false, constant = program[place]
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, constant)
        elif code == 0x54:
            accumulator &= constant
        elif code in (0x15, 0x35):
            hit = accumulator == constant if code == 0x15 else accumulator >= constant
            place += if_true if hit else if_false
        else:
            assert code == 0x06
            return constant


@pytest.fixture(autouse=True)
def on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_every_plain_call_is_allowed_and_every_jump_fits() -> None:
    assert all(decide(name) == ALLOW for name in syscalls.ALLOWED)
    for code, if_true, if_false, _ in seccomp.build(PID, modes=True, links=True):
        assert 0 <= if_true < 256 and 0 <= if_false < 256 and code < 1 << 16


def test_modes_are_for_snippets_with_a_user_of_their_own_and_times_for_none() -> None:
    for name in syscalls.MODES:
        assert decide(name, modes=True) == ALLOW
        assert decide(name, links=True) in (EPERM, ENOSYS)
    for time_call in (132, 235, 261, 280):
        assert interpret(time_call, modes=True, links=True) == EPERM


def test_links_are_read_only_where_none_of_the_machine_is_in_sight() -> None:
    for name in syscalls.LINKS:
        assert decide(name, links=True) == ALLOW
        assert decide(name, modes=True) == EPERM


def test_locks_are_answered_and_never_taken() -> None:
    assert decide("flock", 3, 2) == DONE
    for command in (5, 6, 7, 36, 37, 38):
        assert decide("fcntl", 3, command) == DONE


@given(st.integers(0, (1 << 32) - 1))
def test_no_number_outside_of_the_tables_is_allowed(call: int) -> None:
    known = {row[0] for row in TABLES.values()}
    if call not in known:
        assert interpret(call) in (EPERM, ENOSYS)
    assert interpret(call, machine=0x40000003) == KILL


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("clone", (0x3D0F00,), ALLOW),  # what glibc passes for a thread
        ("clone", (17,), EPERM),  # fork
        ("clone", (0x3D0F00 | 0x10000000,), EPERM),  # a thread and a user namespace
        ("clone", (0x4100 | 17,), EPERM),  # vfork
        ("kill", (PID, 15), ALLOW),
        ("kill", (PID, 0), ALLOW),
        ("kill", (PID, 9), EPERM),
        ("kill", (PID + 1, 15), EPERM),
        ("kill", (0, 15), EPERM),
        ("kill", (-1, 15), EPERM),
        ("tgkill", (PID, 1, 6), ALLOW),
        ("tgkill", (1, 1, 6), EPERM),
        ("socketpair", (1, 1 | 0o2000000, 0), ALLOW),
        ("socketpair", (1, 2, 0), EPERM),
        ("socketpair", (2, 1, 0), EPERM),
        ("prlimit64", (0, 7, 0, 1 << 40), ALLOW),
        ("prlimit64", (0, 7, 1 << 40, 0), EPERM),
        ("prlimit64", (0, 7, 16, 0), EPERM),
        ("prlimit64", (1, 7, 0, 0), EPERM),
        ("openat", (-100, 1 << 40, os.O_RDONLY | os.O_CLOEXEC), ALLOW),
        ("openat", (-100, 1 << 40, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), ALLOW),
        ("openat", (-100, 1 << 40, os.O_RDONLY | os.O_TRUNC), EPERM),
        ("open", (1 << 40, os.O_RDONLY | os.O_TRUNC), EPERM),
        ("prctl", (15, 1 << 40), ALLOW),
        ("prctl", (1, 0), EPERM),
        ("ioctl", (1, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), EPERM),
        ("fcntl", (1, 3), ALLOW),
        ("fcntl", (1, 8, 1), EPERM),
        ("fcntl", (1, 1031, 1 << 20), EPERM),
        ("futex", (1 << 40, 128 | 9 | 256), ALLOW),  # private, by the wall clock
        ("futex", (1 << 40, 128 | 1), ALLOW),
        ("futex", (1 << 40, 9 | 256), EAGAIN),  # a thread's end
        ("futex", (1 << 40, 0), EAGAIN),
        ("futex", (1 << 40, 1), EPERM),
        ("futex", (1 << 40, 10), EPERM),
        ("futex", (1 << 40, 4), EPERM),
        ("preadv2", (3, 1 << 40, 1, 0, 0, 0), ALLOW),
        ("preadv2", (3, 1 << 40, 1, 0, 0, 8), EPERM),
        ("pwritev2", (3, 1 << 40, 1, 0, 0, 8), EPERM),
    ],
)
def test_calls_are_decided_by_their_arguments(
    name: str, arguments: tuple[int, ...], answer: int
) -> None:
    assert decide(name, *arguments) == answer


def test_newer_calls_are_unknown_and_x32_numbers_are_refused() -> None:
    assert interpret(435) == interpret(425) == interpret(9999) == ENOSYS
    assert interpret(0x40000000 + number("read")) == EPERM


def test_a_tree_of_any_depth_and_mode_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "work"
    outside = tmp_path / "outside"
    outside.write_text("kept")
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for level in range(500):
        os.mkdir("d" * 100, 0o700, dir_fd=here)
        inner = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        if level % 100 == 0:
            os.symlink(outside, "link", dir_fd=here)
            os.mkdir("moved-0", 0o000, dir_fd=here)
            os.fchmod(here, 0o000)
        os.close(here)
        here = inner
    os.close(here)
    tree.remove(str(root))
    assert not root.exists()
    assert outside.read_text() == "kept"
    tree.remove(str(root))


def overfull(path: Path, limit: int) -> str | None:
    folder = os.open(path, os.O_RDONLY)
    try:
        return tree.overfull(folder, limit)
    finally:
        os.close(folder)


def test_what_is_too_much_in_a_folder_is_named(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(bytes(100_000))
    assert overfull(tmp_path, 1 << 20) is None
    assert "bytes on disk" in (overfull(tmp_path, 50_000) or "")
    for count in range(tree.MOST_ENTRIES):
        (tmp_path / "a" / f"{count}").touch()
    assert "files" in (overfull(tmp_path, 1 << 30) or "")
    deep = tmp_path / "deep"
    deep.joinpath(*"x" * (tree.DEEPEST + 1)).mkdir(parents=True)
    assert "deeper" in (overfull(deep, 1 << 30) or "")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_keeps_its_owner_out_is_looked_into(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    os.chmod(tmp_path, 0o777)
    pid = os.fork()
    if pid == 0:
        found: str | None = "no answer"
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            os.umask(0)
            for name, mode in (("hidden", 0o300), ("listed", 0o400), ("shut", 0o000)):
                os.mkdir(name, 0o700, dir_fd=folder)
                inner = os.open(name, os.O_RDONLY, dir_fd=folder)
                with open(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=inner), "wb") as file:
                    file.write(bytes(30_000))
                os.fchmod(inner, mode)
            found = tree.overfull(folder, 75_000)
        finally:
            os._exit(0 if found and "bytes on disk" in found else 1)
    os.close(folder)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "large").write_bytes(bytes(1_000_000))
    (work / "link").symlink_to(tmp_path)
    assert overfull(work, 100_000) is None
