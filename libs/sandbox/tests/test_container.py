"""Root as a stock container leaves it, root without capabilities, and an ordinary user."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# What Docker gives a container by default.
CONTAINER = (
    "+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,"
    "+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap"
)
PROGRAM = """
import asyncio, ctypes, json, sys
sys.path[:] = json.loads(sys.argv[1])
isolation, sys.executable = sys.argv[2:]
# This process may read the test's own files wherever they lie; what it starts may not.
ctypes.CDLL(None).prctl(47, 4, 0, 0, 0)
from sandbox import Sandbox, SandboxConfig, SandboxUnavailable
from sandbox.conformance import suite

FAMILIES = ("files", "system calls", "disk")

async def main():
    chosen = [p for p in suite.programs() if p.family in FAMILIES or p.harmless]
    limits = suite.limits(isolation).model_copy(update={"packages": ()})
    try:
        async with Sandbox(limits) as sandbox:
            attempts = await suite.run_suite(sandbox, chosen)
            facts = {"tier": sandbox.tier, "quotas": sandbox.quotas}
    except SandboxUnavailable as error:
        print(json.dumps({"refused": str(error)}))
        return
    facts["wrong"] = {a.program.name: a.wrong for a in attempts if a.wrong}
    print(json.dumps(facts | {"count": len(attempts)}))

asyncio.run(main())
"""


async def outcome(user: list[str], isolation: str, python: str, folder: Path) -> dict[str, Any]:
    """What the suite comes to for `setpriv USER`; skips the test where there is no such tier."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    folder.chmod(0o777)
    process = await asyncio.create_subprocess_exec(
        *("setpriv", *user, sys.executable, "-c", PROGRAM),
        *(json.dumps([os.path.abspath(part) for part in sys.path]), isolation, python),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
        cwd="/",
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    found: dict[str, Any] = json.loads(out)
    if "refused" in found:
        pytest.skip(found["refused"])
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder that any user can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@pytest.mark.parametrize("capabilities", [CONTAINER, ""], ids=["container", "none"])
async def test_root_in_a_container_gets_the_landlock_tier_and_it_holds(
    capabilities: str, folder: Path
) -> None:
    dropped = ",".join(filter(None, ("-all", capabilities)))
    user = [f"--bounding-set={dropped}", "--inh-caps=-all"]
    found = await outcome(user, "auto", sys.executable, folder)
    assert found["wrong"] == {} and found["count"] > 50
    assert found["tier"] == "landlock"


def everybodys_python() -> str | None:
    """An interpreter that an ordinary user can start too, with what it needs of its library."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.access(path, os.X_OK):
            code = "import sys; print(sys.version_info >= (3, 11))"
            done = subprocess.run([path, "-c", code], capture_output=True, text=True)
            if done.stdout == "True\n":
                return path
    return None


@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
async def test_the_tiers_of_an_ordinary_user_hold(tier: str, folder: Path) -> None:
    if (python := everybodys_python()) is None:
        pytest.skip("no interpreter of 3.11 or later where everybody may start it")
    # Nobody, but for reading what lies in root's home: the libraries of this test.
    user = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    user += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"]
    found = await outcome(user, tier, python, folder)
    assert found["wrong"] == {} and found["count"] > 50
    assert found["tier"] == tier
