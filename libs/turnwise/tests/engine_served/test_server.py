"""A server of a run: waited for, told why it failed, and gone with the run whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from turnwise.command import PreflightError
from turnwise.engine.server import Server, free_port, is_free

LONG_S = 60.0
HEALTHY = """
import http.server, subprocess, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def server(tmp_path: Path, code: str, port: int | None = None) -> Server:
    port = port or free_port()
    words = [sys.executable, "-c", code, str(port)]
    return Server(words, f"http://127.0.0.1:{port}", log=tmp_path / "engine.log")


def child(log: Path) -> int:
    until = time.monotonic() + LONG_S
    while not log.is_file() or "child" not in log.read_text():
        assert time.monotonic() < until, "the server did not start"
        time.sleep(0.05)
    return int(log.read_text().split()[1])


def wait_gone(*pids: int) -> None:
    until = time.monotonic() + LONG_S
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < until, f"still there: {left}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_a_server_is_ready_once_it_is_healthy_and_its_children_end_with_it(
    tmp_path: Path,
) -> None:
    found = server(tmp_path, HEALTHY)
    await found.start(LONG_S)
    assert not found.ended
    pid = child(tmp_path / "engine.log")
    await found.close()
    assert found.ended
    wait_gone(pid)


async def test_a_server_that_dies_at_its_start_is_not_waited_for_and_says_its_last_lines(
    tmp_path: Path,
) -> None:
    code = "import sys; print('loading'); sys.exit('RuntimeError: not enough memory')"
    found = server(tmp_path, code)
    with pytest.raises(PreflightError, match="exit code 1(.|\n)*not enough memory"):
        await found.start(3600.0)


async def test_a_server_that_never_gets_healthy_is_given_up_and_ended(tmp_path: Path) -> None:
    code = "import os, time; print('child', os.getpid(), flush=True); time.sleep(600)"
    found = server(tmp_path, code)
    with pytest.raises(PreflightError, match=r"not ready in 3 s: the server runs"):
        await found.start(3.0)
    assert found.ended
    wait_gone(child(tmp_path / "engine.log"))


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = Server(["/nowhere/python"], "http://127.0.0.1:1", log=tmp_path / "engine.log")
    with pytest.raises(PreflightError, match="/nowhere/python"):
        await found.start(LONG_S)


async def test_the_last_lines_are_those_of_this_start(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("said by another\n")
    found = server(tmp_path, "raise SystemExit('mine')")
    with pytest.raises(PreflightError, match="mine") as caught:
        await found.start(LONG_S)
    assert "said by another" not in str(caught.value)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_is_gone_when_its_run_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "engine.log"
    run = f"""
import asyncio
from pathlib import Path
from turnwise.engine.server import Server
async def main():
    port = {free_port()}
    words = [{sys.executable!r}, "-c", {HEALTHY!r}, str(port)]
    server = Server(words, f"http://127.0.0.1:{{port}}", log=Path({str(log)!r}))
    await server.start({LONG_S})
    print("ready", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", run], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        started = psutil.Process(process.pid).children(recursive=True)
        pids = [child(log), *(one.pid for one in started)]
        assert len(set(pids)) >= 3, "guard, server and its child"
        process.send_signal(number)
        process.wait(LONG_S)
        wait_gone(*pids)


async def test_the_server_does_not_outlive_its_guard(tmp_path: Path) -> None:
    found = server(tmp_path, HEALTHY)
    await found.start(LONG_S)
    left = child(tmp_path / "engine.log")
    served = psutil.Process(left).parent()
    assert served is not None
    guarding = served.parent()
    assert guarding is not None and guarding.pid != os.getpid()
    guarding.kill()
    wait_gone(served.pid)
    psutil.Process(left).kill()


async def test_a_server_that_was_killed_has_ended_and_leaves_nobody(tmp_path: Path) -> None:
    found = server(tmp_path, HEALTHY)
    await found.start(LONG_S)
    left = child(tmp_path / "engine.log")
    served = psutil.Process(left).parent()
    assert served is not None
    served.kill()
    async with asyncio.timeout(LONG_S):
        while not found.ended:
            await asyncio.sleep(0.05)
    wait_gone(left)
    assert "ended with exit code 137" in found.said()


def test_a_free_port_is_no_larger_than_it_may_be() -> None:
    """Half of what the system offers lies above this bound."""
    found = [free_port(46_000) for _ in range(40)]
    assert max(found) <= 46_000 and all(map(is_free, found))


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    port = free_port()
    assert is_free(port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert not is_free(port)
