"""Declarations whose members stand in combinators, over every format that types by the schema."""

from __future__ import annotations

from typing import Any

import pytest
import toolparse
from toolparse.grammars.table import FORMATS, grammar_of
from toolparse.grammars.tagged_pairs import TaggedPairs
from toolparse_support import written

INT: dict[str, Any] = {"type": "integer"}
INTS: dict[str, Any] = {"type": "array", "items": INT}
MEMBERS: dict[str, Any] = {"type": "object", "properties": {"n": INT, "ids": INTS}}
OTHER: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}}
BY_SCHEMA = [
    format
    for format in FORMATS
    if isinstance(grammar_of(format), TaggedPairs) or format in ("hunyuan", "minimax-m3", "beam")
]
ROOTS: dict[str, dict[str, Any]] = {
    "oneOf": {"type": "object", "oneOf": [MEMBERS, OTHER]},
    "anyOf": {"anyOf": [OTHER, MEMBERS]},
    "allOf": {"allOf": [MEMBERS, OTHER]},
    "one part": {"oneOf": [MEMBERS]},
    "nested": {"allOf": [{"oneOf": [OTHER, {"anyOf": [MEMBERS]}]}]},
    "ref": {"$defs": {"M": MEMBERS}, "oneOf": [{"$ref": "#/$defs/M"}, OTHER]},
    "root ref": {"$defs": {"M": {"oneOf": [MEMBERS]}}, "$ref": "#/$defs/M"},
    "then": {"if": {"required": ["q"]}, "then": OTHER, "else": MEMBERS},
    "beside": {"properties": {"n": {"description": "how many"}, "ids": {}}, "allOf": [MEMBERS]},
    "own type": {"properties": {"n": {"type": "number"}, "ids": INTS}, "anyOf": [MEMBERS, OTHER]},
}


def tool(parameters: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "pick", "parameters": parameters}}]


def read(format: str, arguments: dict[str, Any], parameters: Any, **options: Any) -> Any:
    text = written(format, [("pick", arguments)])
    parsed = toolparse.parse(text, format, tool(parameters), **options)
    return parsed.calls[0].arguments if parsed.calls else [e.kind for e in parsed.errors]


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("format", BY_SCHEMA)
def test_a_member_behind_a_combinator_has_its_type(format: str, root: str) -> None:
    arguments = {"n": 12, "ids": [7, 9]}
    assert read(format, arguments, ROOTS[root]) == arguments


@pytest.mark.parametrize("format", BY_SCHEMA)
def test_a_member_of_two_parts_may_have_either_type(format: str) -> None:
    word = {"properties": {"n": {"enum": ["all", "none"]}}}
    for n in (12, "all"):
        assert read(format, {"n": n}, {"oneOf": [MEMBERS, word]}) == {"n": n}


def test_parts_that_hold_together_narrow_a_type() -> None:
    both = {"allOf": [{"properties": {"n": {"type": "number"}}}, MEMBERS]}
    assert read("qwen3_coder", {"n": 1.5}, both) == ["bad_param_type"]
    assert read("qwen3_coder", {"n": 2}, both) == {"n": 2}


def test_a_part_without_a_type_leaves_the_member_open() -> None:
    assert read("qwen3_coder", {"n": 12}, {"anyOf": [MEMBERS, {"properties": {"n": {}}}]}) == {
        "n": "12"
    }


def test_required_and_unknown_members_are_known_behind_combinators() -> None:
    first, second = dict(MEMBERS, required=["n"]), dict(OTHER, required=["q"])
    assert read("qwen25", {}, {"allOf": [first]}, validate=True) == ["missing_param"]
    assert read("qwen25", {}, {"oneOf": [first, second]}, validate=True) == {}
    assert read("qwen25", {"z": 1}, {"oneOf": [first, second]}, validate=True) == ["unknown_param"]
    assert read("qwen25", {"z": 1}, {"anyOf": [first, {"additionalProperties": True}]}) == {"z": 1}


def test_schemas_that_turn_in_a_circle_end() -> None:
    circle: dict[str, Any] = {"$defs": {"A": {"oneOf": [{"$ref": "#/$defs/A"}] * 6 + [MEMBERS]}}}
    circle["allOf"] = [{"$ref": "#/$defs/A"}, {"$ref": "#"}]
    assert read("qwen3_coder", {"n": 12}, circle) == {"n": 12}


def test_elements_nest_as_their_combinators_say() -> None:
    row = {"oneOf": [{"properties": {"at": INT}}, {"properties": {"to": {"type": "boolean"}}}]}
    parameters = {
        "properties": {
            "rows": {"anyOf": [{"type": "null"}, {"type": "array", "items": row}]},
            "pair": {"prefixItems": [INT, {"type": "string"}], "items": {"type": "boolean"}},
        }
    }
    arguments = {"rows": [{"at": 1}, {"to": True}], "pair": [1, "2", False]}
    assert read("minimax-m3", arguments, parameters) == arguments


def test_an_element_without_a_child_is_empty_of_its_type() -> None:
    parameters = {
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}},
            "o": {"type": "object"},
            "s": {"type": "string"},
            "either": {"anyOf": [{"type": "array"}, {"type": "null"}]},
            "deep": {"properties": {"tags": {"type": "array"}, "o": {"type": "object"}}},
            "rows": {"type": "array", "items": {"type": "array"}},
        }
    }
    arguments = {
        "tags": [], "o": {}, "s": "", "either": [], "deep": {"tags": [], "o": {}}, "rows": [[], []],
    }  # fmt: skip
    assert "<tags>]<]minimax[>[</tags>" in written("minimax-m3", [("pick", arguments)])
    assert read("minimax-m3", arguments, parameters) == arguments
    parsed = toolparse.parse(
        written("minimax-m3", [("pick", arguments)]), "minimax-m3", tool(parameters)
    )
    assert parsed.is_canonical and parsed.errors == []
    assert read("minimax-m3", {"n": ""}, {"properties": {"n": INT}}) == ["bad_param_type"]
