"""The kinds of error, in groups by what they mean for a reward."""

from typing import Final

TRUNCATION: Final = ("unclosed", "partial_open_tag")
SYNTAX: Final = (
    "empty_body",
    "bad_json",
    "extra_data",
    "not_object",
    "bad_literal",
    "malformed_tag",
    "missing_open_tag",
    "too_deep",
    "too_long",
)
SHAPE: Final = (
    "missing_name",
    "args_not_object",
    "ambiguous_arguments",
    "duplicate_key",
    "positional_argument",
)
SCHEMA: Final = ("unknown_tool", "bad_param_type", "unknown_param", "missing_param")
POLICY: Final = ("in_reasoning", "in_code_fence", "trailing_text", "too_many_calls")
NON_CANONICAL: Final = (
    "noncanonical_whitespace",
    "noncanonical_json_spacing",
    "noncanonical_key_order",
    "noncanonical_escapes",
    "noncanonical_literal",
    "noncanonical_key",
    "args_missing",
    "markers_missing",
    "looks_like",
    "stop_token",
)

GROUPS: Final[dict[str, str]] = {
    kind: group
    for group, kinds in (
        ("truncation", TRUNCATION),
        ("syntax", SYNTAX),
        ("shape", SHAPE),
        ("schema", SCHEMA),
        ("policy", POLICY),
        ("non_canonical", NON_CANONICAL),
    )
    for kind in kinds
}
KINDS: Final = tuple(GROUPS)
