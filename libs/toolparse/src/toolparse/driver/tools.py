"""Tool declarations, compiled once, and the one rule set for typed values.

A value that stands as text on the wire (`<parameter=n>5</parameter>`) gets its type from the
schema of the parameter:
1. string: the text, verbatim; no schema: likewise.
2. integer: an exact JSON integer; `5.0` is refused.
3. number: an int where there is neither point nor exponent, else a float.
4. boolean: true or false; 5. null: only where the schema allows it. Qwen's templates print
   Python's True, False and None, so those words are taken too (and flagged elsewhere).
    array, object: JSON only.
6. union: the JSON value where its type is a member, else the text where string is one.
What does not fit is refused with its text; nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from toolparse.driver.schema import object_shape, type_of, types_of
from toolparse.scan.json_value import json_value

_ANY: Final[frozenset[str]] = frozenset()
_STRING: Final = frozenset(("string",))


class Misfit(ValueError):
    """A value that its schema does not allow."""


class Tool:
    """One compiled declaration: parameter types, required names, whether others may come."""

    __slots__ = ("_properties", "closed", "name", "required", "root", "types", "verbatim")

    def __init__(self, name: str, parameters: Any) -> None:
        self.name = name
        root = parameters if isinstance(parameters, Mapping) else {}
        shape = object_shape(root, root)
        self.root = root
        self._properties = shape.properties
        self.types = {key: types_of(value, root) for key, value in shape.properties.items()}
        self.required = shape.required
        self.closed = bool(shape.properties) and shape.closed
        # The parameters whose text needs no look at parse time.
        self.verbatim = frozenset(
            key for key, types in self.types.items() if types in (_ANY, _STRING)
        )

    def schema(self, param: str) -> Any:
        """The declaration of a parameter."""
        return self._properties.get(param)

    def value(self, param: str, text: str) -> tuple[Any, bool]:
        """The value of `text` for `param` and whether its spelling was canonical."""
        return typed(text, self.types.get(param, _ANY))


class ToolSet:
    """The tools of an episode, compiled once for reuse over many parses.

    tools: declarations as in a chat request, `{"type": "function", "function": {...}}`
    or the inner object alone; `$ref`, unions, `nullable` and enumerations are resolved.
    names: in the order given. Raises ValueError for a declaration without a name.
    """

    __slots__ = ("_compiled", "_parameters", "names", "positions")

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        self._parameters: dict[str, Any] = {}
        self._compiled: dict[str, Tool] = {}
        self.positions: dict[str, int] = {}
        for position, tool in enumerate(tools):
            function: Any = tool.get("function", tool) if isinstance(tool, Mapping) else None
            name = function.get("name") if isinstance(function, Mapping) else None
            if not isinstance(name, str):
                raise ValueError(
                    f"tools[{position}] has no function name: "
                    'want {"type": "function", "function": {"name": ...}}'
                )
            if name not in self.positions:
                self.positions[name] = position
                self._parameters[name] = function.get("parameters")
        self.names = tuple(self.positions)

    def __contains__(self, name: object) -> bool:
        return name in self.positions

    def tool(self, name: str | None) -> Tool | None:
        """The compiled tool, or None where it is not declared."""
        if name is None:
            return None
        found = self._compiled.get(name)
        if found is None and name in self.positions:
            found = self._compiled[name] = Tool(name, self._parameters[name])
        return found


def typed(text: str, types: frozenset[str]) -> tuple[Any, bool]:
    """`text` as one of `types` and whether it is spelled as JSON; raises Misfit."""
    if not types or types == _STRING:
        return text, True
    stripped = text.strip(" \t\r\n")
    data = stripped.encode("utf-8", "replace")
    code, end, duplicate, _ = json_value(data, 0, len(data))
    if code == 0 and end == len(data) and duplicate < 0:
        value = json.loads(stripped)
        kind = type_of(value)
        if kind in types or (kind == "integer" and "number" in types):
            if kind != "string" or types == _STRING:
                return value, True
    if "boolean" in types and stripped in ("True", "False"):
        return stripped == "True", False
    if "null" in types and stripped == "None":
        return None, False
    if "string" in types:
        return text, True
    raise Misfit(f"want {' or '.join(sorted(types))}, found {stripped[:60]!r}")


def misfit(tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """The first way in which decoded arguments do not fit: (kind, param, detail)."""
    for param, value in arguments.items():
        types = tool.types.get(param)
        if types is None:
            if tool.closed:
                return "unknown_param", param, ""
            continue
        kind = type_of(value)
        whole = kind == "integer" and "number" in types
        if types and kind not in types and not whole:
            return "bad_param_type", param, f"want {' or '.join(sorted(types))}, found {kind}"
    for param in tool.required:
        if param not in arguments:
            return "missing_param", param, ""
    return None


def compiled(tools: ToolSet | Iterable[Mapping[str, Any]] | None) -> ToolSet | None:
    """`tools` as a ToolSet."""
    return tools if tools is None or isinstance(tools, ToolSet) else ToolSet(tools)
