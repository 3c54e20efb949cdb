"""Root with the capabilities that a stock container leaves it, and root with none."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys

import pytest

# What Docker gives a container by default.
CONTAINER = (
    "+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,"
    "+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap"
)
PROGRAM = """
import asyncio, json, sys
sys.path[:] = json.loads(sys.argv[1])
from sandbox import Sandbox, SandboxConfig
from sandbox.conformance import suite

async def main():
    chosen = [p for p in suite.programs() if p.family in ("files", "system calls") or p.harmless]
    async with Sandbox(SandboxConfig(packages=(), wall_s=2)) as sandbox:
        attempts = await suite.run_suite(sandbox, chosen)
    wrong = {a.program.name: a.wrong for a in attempts if a.wrong}
    tier = attempts[0].result.tier
    print(json.dumps({"tier": tier, "count": len(attempts), "wrong": wrong}))

asyncio.run(main())
"""


@pytest.mark.parametrize("capabilities", [CONTAINER, ""], ids=["container", "none"])
async def test_root_in_a_container_gets_the_landlock_tier_and_it_holds(capabilities: str) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    dropped = ",".join(filter(None, ("-all", capabilities)))
    process = await asyncio.create_subprocess_exec(
        *("setpriv", f"--bounding-set={dropped}", "--inh-caps=-all"),
        *(sys.executable, "-c", PROGRAM, json.dumps(sys.path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if b"no Landlock" in err:
        pytest.skip("the kernel has no Landlock")
    assert process.returncode == 0, err.decode()
    outcome = json.loads(out)
    assert outcome["wrong"] == {} and outcome["count"] > 40
    assert outcome["tier"] == "landlock"
