"""The method as the run on a laptop has it, opened and closed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from turnwise.config import field_names, load_toml
from turnwise.method import Services

from apps.trainers.agentflow.config import AgentFlowOptions
from apps.trainers.agentflow.method import METHOD, AgentFlowMethod


@asynccontextmanager
async def laptop_method(**changes: Any) -> AsyncIterator[AgentFlowMethod]:
    """The method with the options of `presets/laptop.toml`, but for `changes`, by field name.

    Raises:
        ConfigError: an option that is wrong.
        PreflightError: this machine has no sandbox.
    """
    assert METHOD.preset is not None
    preset = field_names(AgentFlowOptions, load_toml(METHOD.preset)[METHOD.name])
    method = METHOD(AgentFlowOptions(**{**preset, **changes}))
    await method.open(Services())
    try:
        yield method
    finally:
        await method.close()
