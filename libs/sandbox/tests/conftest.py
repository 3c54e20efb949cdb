from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sandbox import Sandbox, SandboxConfig, SandboxUnavailable, Tier


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["namespaces", "landlock"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """A started sandbox with tight limits, on each tier that this machine offers."""
    tier: Tier = request.param
    sandbox = Sandbox(
        SandboxConfig(isolation=tier, wall_s=1.5, memory_mb=256, disk_mb=32, concurrency=2)
    )
    try:
        await sandbox.start()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield sandbox
    await sandbox.close()
