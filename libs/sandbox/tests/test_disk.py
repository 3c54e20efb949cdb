"""A full disk is the doing of the snippet that filled it, and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sandbox import (
    Denied,
    Ran,
    Sandbox,
    SandboxBroken,
    SandboxConfig,
    SandboxUnavailable,
    Tier,
    interpreter,
)

FILL = """
import os, time
files = []
try:
    while len(files) < 55:
        files.append(open("gone", "wb", buffering=0))
        os.unlink("gone")
        files[-1].write(bytes(4 << 20))
finally:
    print(len(files), flush=True)
    time.sleep(0.5)
"""
WORK = """
import os, time
for _ in range(80):
    with open("own", "wb") as file:
        file.write(bytes(200_000))
    os.unlink("own")
    time.sleep(0.01)
print("done")
"""


def changed(monkeypatch: pytest.MonkeyPatch, wanted: str, other: str) -> None:
    """From here on interpreters have `other` in place of `wanted` in their sources."""
    modules = interpreter.modules()
    assert any(wanted in source for _, source in modules)
    replaced = [(name, source.replace(wanted, other)) for name, source in modules]
    monkeypatch.setattr(interpreter, "modules", lambda: replaced)


def without_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on no interpreter can mount a file system."""
    changed(monkeypatch, "quota.enter(base)", "False")


@contextlib.asynccontextmanager
async def opened(tier: Tier) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(
        SandboxConfig(isolation=tier, packages=(), wall_s=20, disk_mb=16, file_mb=4, concurrency=3)
    )
    try:
        await sandbox.start()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    try:
        yield sandbox
    finally:
        await sandbox.close()


@pytest.mark.parametrize("mounts", [True, False], ids=["mounts", "no mounts"])
@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
async def test_a_snippet_that_fills_its_disk_takes_nothing_from_its_neighbours(
    tier: Tier, mounts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not mounts:
        without_mounts(monkeypatch)
    async with opened(tier) as sandbox:
        if not sandbox.quotas:
            pytest.skip("no file system can be mounted here")
        filled, *others = await asyncio.gather(*map(sandbox.run, (FILL, WORK, WORK)))
    assert isinstance(filled, Denied) and "No space left" in filled.what, filled
    # A box without mounts of its own has some MiB to spare.
    assert int(filled.out) <= (4 if mounts else 8) + 1
    assert [other.out for other in others] == ["done\n"] * 2, others


@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
async def test_a_folder_is_empty_and_whole_for_every_snippet(tier: Tier) -> None:
    code = "import os\nprint(os.listdir())\nopen('f', 'wb').write(bytes(3 << 20))\nos.mkdir('d', 0)"
    async with opened(tier) as sandbox:
        results = [await sandbox.run(code) for _ in range(6)]
    assert [result.out for result in results] == ["[]\n"] * 6, results


async def test_without_mounts_a_folder_that_keeps_its_owner_out_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_mounts(monkeypatch)
    code = (
        "import os, time\nos.umask(0)\nos.mkdir('d', 0o300)\n"
        "for n in range(8): open(f'd/{n}', 'wb').write(bytes(4 << 20))\n"
        "time.sleep(10)"
    )
    async with opened("landlock") as sandbox:
        assert not sandbox.quotas
        result = await sandbox.run(code)
    assert isinstance(result, Denied) and "bytes on disk" in result.what, result


async def test_without_mounts_a_box_serves_one_snippet_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_mounts(monkeypatch)
    async with opened("namespaces") as sandbox:
        code = "import time; time.sleep(600)"
        tasks = [asyncio.create_task(sandbox.run(code)) for _ in range(3)]
        async with asyncio.timeout(60):
            while [worker.running for worker in sandbox._workers] != [1, 1, 1]:
                await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()


async def test_where_nothing_can_be_mounted_the_landlock_tier_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_mounts(monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with opened("landlock") as sandbox:
        assert not sandbox.quotas
        assert isinstance(await sandbox.run("open('f', 'w').write('x')"), Ran)
        (base,) = tmp_path.iterdir()
        assert list(base.iterdir()) == []


async def test_without_mounts_what_has_no_name_is_held_by_the_largest_file_and_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_mounts(monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = "import os\nf = open('f', 'wb', buffering=0)\nos.unlink('f')\nf.write(bytes(4 << 20))\n"
    async with opened("landlock") as sandbox:
        result = await sandbox.run(f"{code}print('most')\nf.write(b'x')")
        assert isinstance(result, Denied) and result.out == "most\n", result
        assert "too large" in result.what
        (base,) = tmp_path.iterdir()
        assert list(base.iterdir()) == []


@pytest.mark.parametrize("mounts", [True, False], ids=["mounts", "no mounts"])
async def test_only_a_disk_that_others_can_fill_is_infrastructure_when_it_is_full(
    monkeypatch: pytest.MonkeyPatch, mounts: bool
) -> None:
    if not mounts:
        without_mounts(monkeypatch)
    changed(monkeypatch, "_ROOM_BYTES = 1 << 20", "_ROOM_BYTES = 1 << 80")
    async with opened("landlock") as sandbox:
        result = await sandbox.run("raise OSError(28, 'No space left on device')")
        if sandbox.quotas:
            assert isinstance(result, Denied), result
        else:
            assert isinstance(result, SandboxBroken) and "full" in result.what, result
