"""What a JSON Schema says of an object's members, combinators and `$ref` included.

`allOf` and what stands beside it hold together: types are intersected, requirements added.
Of `anyOf`, `oneOf` and `then`/`else` one part holds: types are joined, and required is what
every part requires. A schema that says nothing of a type leaves it open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

JSON_TYPES: Final = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
# Spellings of other type systems that tool declarations carry.
_TYPE_WORDS: Final = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "int64": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "map": "object",
}
_ANY: Final[frozenset[str]] = frozenset()
_DEPTH: Final = 16


def type_of(value: Any) -> str:
    """The JSON type of a decoded value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else ""


def _resolve(node: Any, root: Any) -> Any:
    """Follows a local `$ref`; an unknown one leaves no constraint."""
    depth = 0
    while isinstance(node, Mapping) and isinstance(ref := node.get("$ref"), str):
        if depth >= _DEPTH or not ref.startswith("#"):
            return {}
        depth += 1
        target = root
        for part in ref[1:].strip("/").split("/"):
            if not part:
                continue
            part = part.replace("~1", "/").replace("~0", "~")
            target = target.get(part) if isinstance(target, Mapping) else None
        node = target
    return node


def _both(*schemas: Any) -> Any:
    """A schema that holds where all of these do."""
    return schemas[0] if len(schemas) == 1 else {"allOf": list(schemas)}


def _one_of(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _combined(node: Mapping[str, Any]) -> Iterator[tuple[bool, list[Any]]]:
    """The combinators of a schema as (whether all parts hold, parts)."""
    if isinstance(node.get("allOf"), list):
        yield True, node["allOf"]
    for key in ("anyOf", "oneOf"):
        if isinstance(node.get(key), list):
            yield False, node[key]
    branches = [node[key] for key in ("then", "else") if isinstance(node.get(key), Mapping)]
    if branches:
        # Where one branch is not written, nothing is required by the other.
        yield False, branches if len(branches) == 2 else [*branches, {}]


def types_of(node: Any, root: Any, above: tuple[int, ...] = ()) -> frozenset[str]:
    """The JSON types that a schema allows; empty where it does not say."""
    node = _resolve(node, root)
    if not isinstance(node, Mapping) or id(node) in above or len(above) >= _DEPTH:
        return _ANY
    above = (*above, id(node))
    extra = {"null"} if node.get("nullable") is True else set()
    found = _named_types(node)
    for together, parts in _combined(node):
        types = [types_of(part, root, above) for part in parts]
        if together:
            for known in types:
                found = _meet(found, known)
        elif all(types):
            found = _meet(found, frozenset().union(*types))
    return frozenset(found | extra) if found else _ANY


def _named_types(node: Mapping[str, Any]) -> frozenset[str]:
    """What a schema says of its type without its combinators."""
    declared = node.get("type")
    if declared is not None:
        words = [declared] if isinstance(declared, str) else declared
        if not isinstance(words, list | tuple):
            return _ANY
        found = {_TYPE_WORDS.get(str(word).lower(), str(word).lower()) for word in words}
        return frozenset(found) if found <= JSON_TYPES else _ANY
    if isinstance(node.get("enum"), list):
        return frozenset(type_of(value) for value in node["enum"])
    if "const" in node:
        return frozenset((type_of(node["const"]),))
    if "properties" in node:
        return frozenset(("object",))
    return frozenset(("array",)) if "items" in node or "prefixItems" in node else _ANY


def _meet(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    """What both allow; an open side leaves the other, and an integer is a number."""
    if not left or not right:
        return left or right
    shared = set(left & right)
    for one, other in ((left, right), (right, left)):
        if "integer" in one and "number" in other:
            shared.add("integer")
    return frozenset(shared)


class ObjectShape(NamedTuple):
    """The members of an object: their schemas, which are required, whether others may come."""

    properties: dict[str, Any]
    required: tuple[str, ...]
    closed: bool


def object_shape(node: Any, root: Any, above: tuple[int, ...] = ()) -> ObjectShape:
    """What a schema says of an object's members, over all its combinators."""
    node = _resolve(node, root)
    if not isinstance(node, Mapping) or id(node) in above or len(above) >= _DEPTH:
        return ObjectShape({}, (), True)
    above = (*above, id(node))
    own = node.get("properties")
    properties: dict[str, Any] = (
        {str(key): schema for key, schema in own.items()} if isinstance(own, Mapping) else {}
    )
    named = node.get("required")
    required = [key for key in named if isinstance(key, str)] if isinstance(named, list) else []
    closed = node.get("additionalProperties") in (None, False)
    for together, parts in _combined(node):
        shapes = [object_shape(part, root, above) for part in parts]
        closed = closed and all(shape.closed for shape in shapes)
        members: dict[str, list[Any]] = {}
        for shape in shapes:
            for key, schema in shape.properties.items():
                members.setdefault(key, []).append(schema)
        for key, schemas in members.items():
            one = _both(*schemas) if together else _one_of(schemas)
            properties[key] = _both(properties[key], one) if key in properties else one
        if together:
            required += [key for shape in shapes for key in shape.required]
        elif shapes:
            required += [k for k in shapes[0].required if all(k in s.required for s in shapes)]
    return ObjectShape(properties, tuple(dict.fromkeys(required)), closed)


def item_schema(node: Any, root: Any, index: int, above: tuple[int, ...] = ()) -> Any:
    """The schema of an array's item; None where nothing is said of it."""
    node = _resolve(node, root)
    if not isinstance(node, Mapping) or id(node) in above or len(above) >= _DEPTH:
        return None
    above = (*above, id(node))
    first = node.get("prefixItems")
    if isinstance(first, list) and index < len(first):
        return first[index]
    if isinstance(node.get("items"), Mapping):
        return node["items"]
    found = [
        schema
        for _, parts in _combined(node)
        for part in parts
        if (schema := item_schema(part, root, index, above)) is not None
    ]
    return _one_of(found) if found else None
