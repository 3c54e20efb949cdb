"""The method as the run on a laptop has it, opened and closed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from turnwise.config import field_names, load_toml
from turnwise.method import Services

from apps.trainers.toolorchestra.method import METHOD, ToolOrchestraMethod
from apps.trainers.toolorchestra.options import ToolOrchestraOptions


@asynccontextmanager
async def laptop_method(**changes: Any) -> AsyncIterator[ToolOrchestraMethod]:
    """The method with the options of `presets/laptop.toml`, but for `changes`, by field name.

    Raises:
        ConfigError: an option that is wrong.
    """
    assert METHOD.preset is not None
    preset = field_names(ToolOrchestraOptions, load_toml(METHOD.preset)[METHOD.name])
    method = METHOD(ToolOrchestraOptions(**{**preset, **changes}))
    await method.open(Services())
    try:
        yield method
    finally:
        await method.close()
