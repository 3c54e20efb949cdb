"""Tool declarations, compiled once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class ToolSet:
    """The tools of an episode, compiled for reuse.

    tools: declarations as in a chat request, `{"type": "function", "function": {...}}`
    or the inner object alone. `names` are in the order given.
    """

    __slots__ = ("names", "schemas")

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        self.schemas: dict[str, Mapping[str, Any]] = {}
        for position, tool in enumerate(tools):
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            name = function.get("name") if isinstance(function, Mapping) else None
            if not isinstance(name, str):
                raise ValueError(
                    f"tools[{position}] has no function name: "
                    'want {"type": "function", "function": {"name": ...}}'
                )
            self.schemas.setdefault(name, function)
        self.names = tuple(self.schemas)


def compiled(tools: ToolSet | Iterable[Mapping[str, Any]] | None) -> ToolSet | None:
    """`tools` as a ToolSet."""
    return tools if tools is None or isinstance(tools, ToolSet) else ToolSet(tools)
