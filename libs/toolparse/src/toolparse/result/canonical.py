"""Flags: what a policy may want to know, and where a text differs from the template's.

A call is canonical where its block is, byte for byte, what `Grammar.write` gives for it.
Where it is not, the reason is looked for from the coarse to the fine.
"""

from __future__ import annotations

import json
import re
from typing import Final

from toolparse.grammars.grammar import Grammar
from toolparse.grammars.tagged_json import TaggedJson
from toolparse.grammars.tagged_pairs import TaggedPairs
from toolparse.result.model import Call, Error, Parsed

Span = tuple[int, int]
Reason = tuple[str, str | None]

_SENTENCES: Final = {
    "noncanonical_whitespace": "White space around the tags is not what the template writes.",
    "noncanonical_json_spacing": "The JSON is spaced in another way than the template spaces it.",
    "noncanonical_key_order": "The keys stand in another order than the template writes them.",
    "noncanonical_escapes": "A string is escaped in another way than the template escapes it.",
    "noncanonical_literal": "A value is spelled in another way than the template spells it.",
    "noncanonical_key": "The call uses a key that the template does not write.",
    "args_missing": "The call has no arguments, which the template always writes.",
    "markers_missing": "The text looks like a call without its tags; was it decoded without "
    "special tokens?",
    "looks_like": "The text looks like a call in another format.",
    "partial_open_tag": "The text ends inside the tag that would open a tool call.",
    "stop_token": "The text ends with a stop token.",
    "trailing_text": "There is text after the last call.",
    "in_code_fence": "The call stands inside a code fence.",
}
_SPACE: Final = re.compile(r"\s+")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
# What a text shows of a format when it was meant for another one.
_MARKS: Final = (
    (b"<function=", "qwen3_coder"),
    (b"<arg_key>", "glm45"),
    (b"<tool_call>", "qwen25"),
    (b"[TOOL_CALLS]", "mistral"),
    (b"<|tool_calls_section_begin|>", "kimi_k2"),
    (b"<|python_tag|>", "llama3"),
    (b"<minimax:tool_call>", "minimax-m2"),
    ("<｜tool▁calls▁begin｜>".encode(), "deepseekv3"),
    ("<｜DSML｜".encode(), "deepseekv4"),
    (b"<|channel|>commentary to=", "gpt-oss"),
)


def flags(parsed: Parsed) -> list[Error]:
    """All flags of a parse, in text order."""
    content = parsed.content_byte_spans
    found: list[Error] = []

    def add(kind: str, span: Span, param: str | None = None, call: int | None = None) -> None:
        sentence = _SENTENCES[kind]
        if param is not None:
            sentence = f"{sentence[:-1]}: {param}."
        found.append(Error(parsed.source, kind, sentence, span, None, param, call))

    data = parsed.source.data
    fenced = False
    fences = _Fences(data, content)
    for call in parsed.attempts:
        if call.error is None:
            inside = fences.odd_before(call.byte_span[0])
            fenced = fenced or inside
            if inside:
                add("in_code_fence", call.byte_span, None, call.index)
            for kind, param in reasons(parsed.grammar, call):
                add(kind, call.byte_span, param, call.index)
    if parsed.calls and not fenced:
        last = max(call.byte_span[1] for call in parsed.attempts)
        for start, end in content:
            if end > last and data[max(start, last) : end].strip():
                add("trailing_text", (max(start, last), content[-1][1]))
                break
    if not parsed.attempts:
        other = _without_markers(parsed)
        if other is not None:
            add(other[0], (0, len(data)), other[1])
    end = parsed.cut if parsed.cut >= 0 else len(data)
    start = _partial_opener(parsed, end)
    if start >= 0:
        add("partial_open_tag", (start, end))
    if parsed.cut >= 0:
        add("stop_token", (parsed.cut, len(data)))
    return found


def _partial_opener(parsed: Parsed, end: int) -> int:
    """Where the content ends with the beginning of an opener, four bytes or more; or -1."""
    data = parsed.source.data
    content = parsed.content_byte_spans
    if not content or content[-1][1] != end:
        return -1
    for opener in parsed.grammar.openers:
        for size in range(min(len(opener), end - content[-1][0]), 3, -1):
            if size < len(opener) and data.startswith(opener[:size], end - size, end):
                return end - size
    return -1


class _Fences:
    """Counts code fences in the content, once from left to right."""

    def __init__(self, data: bytes | bytearray, content: list[Span]) -> None:
        self.data = data
        self.content = content
        self.piece = 0
        self.count = 0

    def odd_before(self, at: int) -> bool:
        """Whether an odd number stands before `at`; calls come in text order."""
        while self.piece < len(self.content) and self.content[self.piece][1] <= at:
            self.count += self.data.count(b"```", *self.content[self.piece])
            self.piece += 1
        return self.count % 2 == 1


def _without_markers(parsed: Parsed) -> Reason | None:
    """What a text without attempts seems to be."""
    data = bytes(parsed.source.data[: parsed.cut if parsed.cut >= 0 else None])
    body = data.strip()
    if body[:1] in (b"{", b"[") and b'"name"' in body:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return None
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, dict) and isinstance(first.get("name"), str):
            if "arguments" in first or "parameters" in first:
                return "markers_missing", None
    own = {opener for opener in parsed.grammar.openers}
    for mark, name in _MARKS:
        if mark in data and not any(mark in opener for opener in own):
            return "looks_like", name
    return None


def reasons(grammar: Grammar, call: Call) -> list[Reason]:
    """Why the block of an executable call is not canonical; empty where it is."""
    if call.name is None or call.arguments is None:
        return []
    raw = call.raw
    written = grammar.write([(call.name, call.arguments)])
    if raw == written:
        return []
    spelled = grammar.spell(call.arguments)
    own = call.raw_arguments
    found: list[Reason] = []
    inner = getattr(grammar, "inner", grammar)
    if isinstance(inner, TaggedJson) and inner.close:
        found += _object_reasons(inner, call)
    elif own is None and isinstance(inner, TaggedPairs):
        bare = inner.written(call.name, {})
        if bare not in raw:
            same = _squeezed(bare) in _squeezed(raw)
            found.append(("noncanonical_whitespace" if same else "noncanonical_literal", None))
    elif own is not None and _squeezed(raw.replace(own, "", 1)) != _squeezed(
        written.replace(spelled, "", 1)
    ):
        # Several calls share a section, so the tags around one of them may be missing.
        pass
    elif own is not None and raw.replace(own, "", 1) != written.replace(spelled, "", 1):
        found.append(("noncanonical_whitespace", None))
    if own is not None and own.strip() != spelled.strip():
        if isinstance(inner, TaggedPairs):
            found += _pair_reasons(inner, call)
        elif own[:1] == "{":
            found += _json_reasons(own, spelled)
        else:
            same = _squeezed(own) == _squeezed(spelled)
            found.append(("noncanonical_whitespace" if same else "noncanonical_literal", None))
    return list(dict.fromkeys(found))


def _squeezed(text: str) -> str:
    return _SPACE.sub("", text)


def _object_reasons(grammar: TaggedJson, call: Call) -> list[Reason]:
    """Differences around the object of a tagged-JSON call and in its own keys."""
    found: list[Reason] = []
    inside = call.raw.removeprefix(grammar.open.decode()).removesuffix(grammar.close.decode())
    body = inside.strip(" \t\r\n")
    if inside != f"{grammar.around[0]}{body}{grammar.around[1]}":
        found.append(("noncanonical_whitespace", None))
    try:
        keys = list(json.loads(body))
    except (ValueError, RecursionError):
        return found
    name, arguments = (k.decode()[1:-1] for k in (grammar.names[0], grammar.arguments[0]))
    for key in keys:
        if key not in (name, arguments):
            found.append(("noncanonical_key", key))
    if call.arguments_byte_span is None:
        found.append(("args_missing", None))
    elif len(keys) > 1 and keys.index(name) > 0:
        found.append(("noncanonical_key_order", None))
    own = call.raw_arguments or ""
    at = body.find(own) if own else -1
    outer = body if at < 0 else body[:at] + body[at + len(own) :]
    bare = _STRING.sub('""', outer)
    if _SPACE.search(bare.replace(", ", ",").replace(": ", ":")) or re.search(r"[,:](?! )", bare):
        found.append(("noncanonical_json_spacing", None))
    return found


def _json_reasons(own: str, spelled: str) -> list[Reason]:
    """Differences between two spellings of one JSON value."""
    bare, other = _STRING.sub('""', own), _STRING.sub('""', spelled)
    found: list[Reason] = []
    if bare != other:
        same = _squeezed(bare) == _squeezed(other)
        found.append(("noncanonical_json_spacing" if same else "noncanonical_literal", None))
    if _STRING.findall(own) != _STRING.findall(spelled):
        found.append(("noncanonical_escapes", None))
    return found or [("noncanonical_literal", None)]


def _pair_reasons(grammar: TaggedPairs, call: Call) -> list[Reason]:
    """Differences between the values of a key/value call and the template's."""
    found: list[Reason] = []
    spans = call.value_byte_spans or {}
    for key, value in (call.arguments or {}).items():
        if key in spans and call.source.slice(*spans[key]) != grammar.text(value):
            if grammar.decode is None:
                found.append(("noncanonical_literal", key))
    return found or [("noncanonical_whitespace", None)]
