"""Many at once, cancellation, crashes and the end: nothing blocks and nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from sandbox import (
    Ran,
    Result,
    Sandbox,
    SandboxBroken,
    SandboxConfig,
    SandboxUnavailable,
    TimedOut,
    interpreter,
)
from sandbox.conformance.suite import descendants

SLEEP = "import time; print('up'); time.sleep(600)"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the sandboxes of a test keep their working folders."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest_asyncio.fixture(params=["namespaces", "landlock"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    config = SandboxConfig(isolation=request.param, wall_s=20, packages=(), concurrency=8)
    made = Sandbox(config)
    try:
        await made.start()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield made
    await made.close()


async def eventually(holds: Callable[[], bool]) -> bool:
    """Whether `holds` comes true within ten seconds."""
    for _ in range(1000):
        if holds():
            return True
        await asyncio.sleep(0.01)
    return False


async def running(sandbox: Sandbox, task: asyncio.Task[Result], idle: set[int]) -> set[int]:
    """Waits until the snippet of `task` runs; its processes."""
    assert await eventually(lambda: len(descendants() - idle) >= 2), task
    await asyncio.sleep(0.2)
    return descendants() - idle


async def test_sixty_four_at_once_come_back_each_with_its_own(sandbox: Sandbox) -> None:
    code = "import sys; open('own', 'w').write(input()); print(open('own').read(), sys.argv)"
    results = await asyncio.gather(*(sandbox.run(code, f"{n}") for n in range(64)))
    assert [result.out.split()[0] for result in results] == [str(n) for n in range(64)]


async def test_the_event_loop_goes_on_while_snippets_run(sandbox: Sandbox) -> None:
    code = "print('x' * 60000)\nfor _ in range(300000): pass"
    work = asyncio.gather(*(sandbox.run(code) for _ in range(24)))
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    assert all(isinstance(result, Ran) for result in await work)
    assert turns > 1000


async def test_no_more_run_than_there_are_places(sandbox: Sandbox) -> None:
    idle = descendants()
    tasks = [asyncio.create_task(sandbox.run(SLEEP)) for _ in range(20)]
    assert await eventually(lambda: len(descendants() - idle) >= 16)
    await asyncio.sleep(0.3)
    assert len(descendants() - idle) == 16  # eight snippets and their supervisors
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_cancelled_run_takes_its_snippet_along(sandbox: Sandbox, folder: Path) -> None:
    idle = descendants()
    task = asyncio.create_task(sandbox.run("open('kept', 'w').close()\n" + SLEEP))
    await running(sandbox, task, idle)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await eventually(lambda: descendants() <= idle)
    assert list(folder.glob("*/*")) == []
    result = await sandbox.run("print('next')")
    assert result.out == "next\n"


async def test_a_cancelled_wait_for_a_place_loses_no_place(sandbox: Sandbox) -> None:
    tasks = [asyncio.create_task(sandbox.run(SLEEP)) for _ in range(30)]
    await asyncio.sleep(0.3)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    results = await asyncio.gather(*(sandbox.run("print(1)") for _ in range(16)))
    assert all(isinstance(result, Ran) for result in results)


async def test_close_ends_what_runs_and_leaves_nothing(sandbox: Sandbox, folder: Path) -> None:
    tasks = [asyncio.create_task(sandbox.run(SLEEP)) for _ in range(12)]
    await asyncio.sleep(0.5)
    await sandbox.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, SandboxBroken | RuntimeError) for result in results), results
    assert descendants() == set()
    assert list(folder.iterdir()) == []
    with pytest.raises(RuntimeError, match="not started"):
        await sandbox.run("print(1)")


async def test_a_killed_interpreter_is_replaced(sandbox: Sandbox, folder: Path) -> None:
    for pid in descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    results = await asyncio.gather(*(sandbox.run("print('again')") for _ in range(4)))
    assert [result.out for result in results] == ["again\n"] * 4
    await sandbox.close()
    assert descendants() == set() and list(folder.iterdir()) == []


async def test_a_killed_supervisor_is_infrastructure_and_takes_its_snippet_along(
    sandbox: Sandbox, folder: Path
) -> None:
    idle = descendants()
    task = asyncio.create_task(sandbox.run("open('kept', 'w').close()\n" + SLEEP))
    processes = await running(sandbox, task, idle)
    os.kill(min(processes), signal.SIGKILL)
    result = await task
    assert isinstance(result, SandboxBroken) and "without an answer" in result.what
    assert await eventually(lambda: descendants() <= idle)
    assert await eventually(lambda: list(folder.glob("*/*")) == [])


async def test_the_death_of_the_owner_ends_everything(sandbox: Sandbox, tmp_path: Path) -> None:
    owner = (
        "import asyncio, json, sys\n"
        "sys.path[:] = json.loads(sys.argv[1])\n"
        "from sandbox import Sandbox, SandboxConfig\n"
        "async def main():\n"
        "    sandbox = Sandbox(SandboxConfig(isolation=sys.argv[2], packages=()))\n"
        "    await sandbox.start()\n"
        "    print('started', flush=True)\n"
        f"    await sandbox.run({SLEEP!r})\n"
        "asyncio.run(main())\n"
    )
    before = descendants()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", owner, json.dumps(sys.path), sandbox.tier),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "..")},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"started\n"
    assert await eventually(lambda: len(descendants() - before) >= 4)
    mine = descendants() - before
    process.kill()
    await process.wait()
    # Orphans are no descendants any more, so look for them by number.
    assert await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in mine))


async def test_the_interpreter_is_replaced_after_so_many_snippets() -> None:
    config = SandboxConfig(packages=(), recycle_after=3, concurrency=2)
    async with Sandbox(config) as sandbox:
        code = "import os; print(os.getppid(), os.environ['HOME'].split('/')[-2])"
        homes = [(await sandbox.run(code)).out.split()[1] for _ in range(12)]
        results = await asyncio.gather(*(sandbox.run("print('ok')") for _ in range(20)))
    assert all(result.out == "ok\n" for result in results)
    if sandbox.refused:  # in a box the folder has the same name each time
        assert len(set(homes)) >= 3
    assert descendants() == set()


async def test_a_replaced_interpreter_lets_its_snippets_finish() -> None:
    config = SandboxConfig(packages=(), recycle_after=2, concurrency=4)
    code = "import time; open('own', 'w').close(); time.sleep(1); open('own'); print('done')"
    async with Sandbox(config) as sandbox:
        slow = [asyncio.create_task(sandbox.run(code)) for _ in range(2)]
        await asyncio.sleep(0.2)
        quick = [await sandbox.run("print('ok')") for _ in range(6)]
        assert [result.out for result in quick] == ["ok\n"] * 6
        assert [(await task).out for task in slow] == ["done\n"] * 2


async def test_waiting_for_a_place_is_not_counted_against_the_snippet() -> None:
    async with Sandbox(SandboxConfig(packages=(), wall_s=1.0, concurrency=1)) as sandbox:
        code = "import time; time.sleep(0.6); print('done')"
        results = await asyncio.gather(*(sandbox.run(code) for _ in range(4)))
    assert [result.out for result in results] == ["done\n"] * 4


@pytest.fixture
def one_processor() -> Iterator[None]:
    """All that is started meanwhile shares one processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_processor")
async def test_a_busy_machine_fails_no_snippet() -> None:
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint('done')"
    config = SandboxConfig(packages=(), wall_s=1.0, concurrency=6)
    async with Sandbox(config) as sandbox:
        results = await asyncio.gather(*(sandbox.run(code) for _ in range(6)))
        assert [result.out for result in results] == ["done\n"] * 6, results
        loops = await asyncio.gather(*(sandbox.run("while True: pass") for _ in range(3)))
        assert all(isinstance(result, TimedOut) for result in loops), loops


@pytest.mark.usefixtures("one_processor")
async def test_a_machine_too_busy_to_run_a_snippet_is_infrastructure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hurried = [
        (name, source.replace("_PATIENCE_S = 60.0", "_PATIENCE_S = 0.1"))
        for name, source in interpreter.modules()
    ]
    monkeypatch.setattr(interpreter, "modules", lambda: hurried)
    config = SandboxConfig(packages=(), wall_s=0.5, concurrency=4)
    async with Sandbox(config) as sandbox:
        results = await asyncio.gather(*(sandbox.run("while True: pass") for _ in range(4)))
    assert all(isinstance(result, SandboxBroken) for result in results), results
    assert all("for a processor" in getattr(result, "what", "") for result in results)


async def test_a_snippet_killed_from_outside_is_infrastructure(sandbox: Sandbox) -> None:
    idle = descendants()
    task = asyncio.create_task(sandbox.run(SLEEP))
    processes = await running(sandbox, task, idle)
    os.kill(max(processes), signal.SIGKILL)
    result = await task
    assert isinstance(result, SandboxBroken) and "killed from outside" in result.what, result


async def test_a_disk_without_room_for_a_working_folder_is_infrastructure() -> None:
    config = SandboxConfig(isolation="none", packages=(), disk_mb=1 << 40)
    sandbox = Sandbox(config)
    with pytest.raises(SandboxUnavailable, match="bytes are free for the working folder"):
        await sandbox.start()
    assert descendants() == set()


async def test_two_sandboxes_of_a_process_share_no_user_and_so_no_limit(sandbox: Sandbox) -> None:
    async with Sandbox(sandbox.config) as other:
        first, second = [
            await each.run("import os; print(os.getuid())") for each in (sandbox, other)
        ]
    if int(first.out) == os.getuid():
        pytest.skip("snippets have no users of their own here")
    assert first.out != second.out


async def test_start_says_the_tier_and_each_result_repeats_it() -> None:
    async with Sandbox(SandboxConfig(packages=())) as sandbox:
        tier = await sandbox.start()
        assert tier in ("namespaces", "landlock")
        assert (await sandbox.run("pass")).tier == sandbox.tier == tier


async def test_auto_refuses_where_no_tier_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.pool.unmet", lambda tier: f"no {tier} here")
    sandbox = Sandbox(SandboxConfig(packages=()))
    with pytest.raises(SandboxUnavailable, match=r"no namespaces here.*no landlock here.*'none'"):
        await sandbox.start()
    assert descendants() == set()


async def test_a_tier_whose_walls_do_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.pool.SELF_CHECK", "print('network process')")
    sandbox = Sandbox(SandboxConfig(packages=()))
    with pytest.raises(SandboxUnavailable, match="network process"):
        await sandbox.start()
    assert descendants() == set()


async def test_an_interpreter_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.interpreter.BOOT", "raise SystemExit('no such thing')")
    with pytest.raises(SandboxUnavailable, match="no such thing"):
        await Sandbox(SandboxConfig(isolation="none", packages=())).start()
    assert descendants() == set()


async def test_without_walls_only_limits_hold_and_processes_are_still_ended() -> None:
    config = SandboxConfig(isolation="none", packages=(), wall_s=1.0)
    daemon = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "print('left')"
    )
    async with Sandbox(config) as sandbox:
        idle = descendants()
        result = await sandbox.run(daemon)
        assert result.tier == "none" and result.out == "left\n"
        assert isinstance(await sandbox.run("while True: pass"), TimedOut)
        assert await eventually(lambda: descendants() <= idle)


async def test_a_missing_package_is_told_and_costs_only_itself() -> None:
    async with Sandbox(SandboxConfig(packages=("no_such_package",))) as sandbox:
        assert "no_such_package" in sandbox.missing
        assert "ModuleNotFoundError" in (await sandbox.run("import no_such_package")).err
        assert (await sandbox.run("print(1)")).out == "1\n"


async def test_a_deadline_is_kept_while_output_keeps_coming(sandbox: Sandbox) -> None:
    async with Sandbox(SandboxConfig(packages=(), wall_s=0.5, output_kb=16384)) as other:
        began = time.monotonic()
        result = await other.run(
            "import time\nwhile True: print('x', flush=True); time.sleep(.001)"
        )
        assert isinstance(result, TimedOut) and result.out.startswith("x\n")
        assert time.monotonic() - began < 15
