import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from turnwise.launch.processes import (
    Process,
    end_family,
    family,
    identify,
    is_alive,
    send,
    wait_gone,
)

# A leader with a child in its group and one in a session of its own; both ignore SIGTERM.
TREE = """
import signal, subprocess, sys, time
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1); time.sleep(300)"
for own in (False, True):
    child = subprocess.Popen([sys.executable, "-u", "-c", stubborn], start_new_session=own,
                             stdout=subprocess.PIPE)
    child.stdout.read(1)
print("ready", flush=True)
time.sleep(300)
"""


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, "-c", TREE], start_new_session=True, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    process = identify(child.pid)
    yield child
    if process is not None:
        end_family(process, 0.0)
    child.wait()


def test_a_leader_is_ended_with_descendants_that_ignore_it_and_sit_in_other_sessions(
    leader: subprocess.Popen[bytes],
) -> None:
    process = identify(leader.pid)
    assert process is not None
    members = family(process)
    assert len(members) == 3
    killed = end_family(process, 5.0)
    assert {one.pid for one in killed} == {one.pid for one in members} - {leader.pid}
    assert wait_gone(members, 5.0)


def test_orphans_in_the_leaders_session_are_found_after_it_is_gone(
    leader: subprocess.Popen[bytes],
) -> None:
    process = identify(leader.pid)
    assert process is not None
    leader.kill()
    leader.wait()
    left = family(process)
    assert len(left) == 1
    assert end_family(process, 0.0) == left


def test_a_process_of_the_same_number_but_another_start_is_never_signalled() -> None:
    mine = identify(os.getpid())
    assert mine is not None and is_alive(mine)
    earlier = Process(pid=mine.pid, started=mine.started - 1, boot=mine.boot)
    assert not is_alive(earlier)
    assert not send(earlier, signal.SIGKILL)


def test_a_record_of_another_boot_ends_nobody(leader: subprocess.Popen[bytes]) -> None:
    process = identify(leader.pid)
    assert process is not None
    other = Process(pid=process.pid, started=process.started, boot="another")
    assert end_family(other, 0.0) == []
    assert is_alive(process)


def test_a_zombie_counts_as_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    until = time.monotonic() + 10
    while identify(child.pid) is not None:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert Path(f"/proc/{child.pid}").exists()
    child.wait()


def test_waiting_for_a_process_that_stays_has_an_end(leader: subprocess.Popen[bytes]) -> None:
    process = identify(leader.pid)
    assert process is not None
    assert not wait_gone([process], 0.1)


def test_a_command_name_with_spaces_and_brackets_is_read_right(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "60"])
    try:
        process = identify(child.pid)
        assert process is not None and is_alive(process)
    finally:
        child.kill()
        child.wait()
