"""The tools of a run: found, built, named and run by one table.

`Toolbox.match` reads a name as a planner writes it: case, and a space or a dash for `_`, make no
difference. Whatever else is written is no tool; nothing stands in for one that is unknown.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence
from types import ModuleType

from turnwise.config import ConfigError

from apps.trainers.agentflow import tools as folder
from apps.trainers.agentflow.tools.tool import Tool, ToolParts

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Toolbox:
    """The tools that a planner can choose from, in the order in which it is shown them."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        """
        Raises:
            ConfigError: there is none, two share a name, or a name is no lower-case identifier.
        """
        if not tools:
            raise ConfigError("tools: there must be at least one")
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if not _NAME.fullmatch(tool.name):
                raise ConfigError(
                    f"tools: {type(tool).__qualname__} is named {tool.name!r}; a name is made of"
                    " lower-case letters, digits and _"
                )
            if tool.name in self._tools:
                raise ConfigError(f"tools: two are named {tool.name}")
            self._tools[tool.name] = tool

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def match(self, written: str) -> Tool | None:
        """The tool of that name, or None."""
        return self._tools.get(re.sub(r"[ -]", "_", written.strip().lower()))


def discover() -> dict[str, type[Tool]]:
    """The classes of tools in the modules of the folder `tools`, by name.

    Raises:
        ConfigError: two share a name.
    """
    found: dict[str, type[Tool]] = {}
    for entry in sorted(pkgutil.iter_modules(folder.__path__), key=lambda entry: entry.name):
        module = importlib.import_module(f"{folder.__name__}.{entry.name}")
        for tool in _defined_in(module):
            if tool.name in found:
                raise ConfigError(f"tools: two of this package are named {tool.name}")
            found[tool.name] = tool
    return found


def make_toolbox(names: Sequence[str], parts: ToolParts) -> Toolbox:
    """Builds the tools that are named, each by its name or as `package.module:Class`.

    Raises:
        ConfigError: there is no such tool, or a part that it needs is missing.
    """
    known = discover()
    chosen = []
    for name in names:
        made = _imported(name) if ":" in name else known.get(name)
        if made is None:
            raise ConfigError(
                f"tools: {name!r} is neither one of {', '.join(known)} nor an import path"
                " package.module:Class"
            )
        chosen.append(made.build(parts))
    return Toolbox(chosen)


def _defined_in(module: ModuleType) -> Iterator[type[Tool]]:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Tool) and hasattr(value, "name"):
            if value.__module__ == module.__name__:
                yield value


def _imported(path: str) -> type[Tool]:
    module, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"tools: {path}: {error}") from error
    if not (isinstance(made, type) and issubclass(made, Tool)):
        raise ConfigError(f"tools: {path} is no class of tool")
    return made
