"""Running model-written Python: walls, limits and a closed set of results.

    async with Sandbox(SandboxConfig(wall_s=5)) as sandbox:
        result = await sandbox.run("print(2**10)")

`isolation = "auto"` probes once, at start, for the strongest tier that holds: `namespaces`
(bubblewrap, and all that follows), then `landlock` (Landlock, seccomp-BPF, no_new_privs, rlimits,
a user of its own). Where neither holds it refuses.
"""

from sandbox.config import Isolation, SandboxConfig
from sandbox.interpreter import SandboxUnavailable
from sandbox.pool import Sandbox
from sandbox.result import (
    Denied,
    OutOfMemory,
    OutputTruncated,
    Ran,
    Result,
    SandboxBroken,
    Tier,
    TimedOut,
)

__all__ = [
    "Denied",
    "Isolation",
    "OutOfMemory",
    "OutputTruncated",
    "Ran",
    "Result",
    "Sandbox",
    "SandboxBroken",
    "SandboxConfig",
    "SandboxUnavailable",
    "Tier",
    "TimedOut",
]
