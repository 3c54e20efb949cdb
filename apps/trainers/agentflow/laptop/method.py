"""The method as the run on a laptop has it, opened and closed."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

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
    preset = tomllib.loads(METHOD.preset.read_text(encoding="utf-8"))
    method = METHOD(AgentFlowOptions(**{**_fields(preset["agentflow"]), **changes}))
    await method.open(Services())
    try:
        yield method
    finally:
        await method.close()


def _fields(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key.replace("-", "_"): _fields(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
    }
