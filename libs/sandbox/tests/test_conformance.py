"""The hostile programs, on every tier that this machine offers."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox import Sandbox, SandboxConfig, SandboxUnavailable, Tier
from sandbox.conformance import suite

PROGRAMS = suite.programs()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of this test's own that every user may enter, as /tmp."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o777)
        monkeypatch.setattr("tempfile.tempdir", path)
        yield Path(path)


def working_folders(folder: Path) -> list[Path]:
    """Working folders that were not deleted: in the temporary folder, or inside of a box."""
    found = list(folder.glob("turnwise-sandbox-*/*"))
    for pid in suite.descendants():
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/root/tmp/work").iterdir()
    return found


def test_the_tables_hold_eighty_programs_in_ten_families_with_names_of_their_own() -> None:
    families = collections.Counter(program.family for program in PROGRAMS)
    assert len(families) == 10 and sum(families.values()) >= 80
    assert min(families.values()) >= 8
    names = collections.Counter((program.family, program.name) for program in PROGRAMS)
    assert set(names.values()) == {1}


@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
async def test_no_program_escapes_and_nothing_is_left_behind(tier: Tier, folder: Path) -> None:
    before = suite.descendants()
    sandbox = Sandbox(suite.limits(tier))
    try:
        await sandbox.start()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    try:
        await suite.run_suite(sandbox, PROGRAMS[:2])
        resident = suite.resident_bytes()
        attempts = await suite.run_suite(sandbox, PROGRAMS)
        growth = suite.resident_bytes() - resident
        left = working_folders(folder)
    finally:
        await sandbox.close()
    assert {a.program.name: a.wrong for a in attempts if a.wrong} == {}
    assert growth < 10 << 20
    assert left == []
    assert suite.descendants() <= before
    assert list(folder.iterdir()) == []


async def test_without_walls_the_harness_sees_the_harmless_attempts_escape() -> None:
    chosen = [program for program in PROGRAMS if program.harmless]
    assert len(chosen) >= 6
    async with Sandbox(SandboxConfig(isolation="none", wall_s=2, packages=())) as sandbox:
        attempts = await suite.run_suite(sandbox, chosen)
    assert [attempt.program.name for attempt in attempts if not attempt.wrong] == []


async def test_the_harness_sees_what_a_program_did_without_saying_so() -> None:
    silent = [
        "open('@CANARY@', 'w').write('changed')",
        "print(open('@CANARY@').read())",
        "os.unlink('@OPEN@/keep')",
        "open('@OPEN@/new', 'w')",
        "os.kill(@PID@, signal.SIGTERM); import time; time.sleep(0.2)",
        "socket.create_connection(('127.0.0.1', @PORT@))",
    ]
    async with Sandbox(SandboxConfig(isolation="none", wall_s=2, packages=())) as sandbox:
        for code in silent:
            program = suite.Program(family="test", name="silent", tries="all", code=code)
            (attempt,) = await suite.run_suite(sandbox, [program])
            await asyncio.sleep(0)
            assert attempt.wrong, code
