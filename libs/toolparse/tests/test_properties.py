"""Properties over all formats: round trips, chunkings, mutations, strict against lenient."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import toolparse
from hypothesis import given, settings
from hypothesis import strategies as st
from toolparse.grammars.table import grammar_of
from toolparse_support import GRAMMARS, TOOLS, Texts, attempts_of, view, written

# The long run: TOOLPARSE_MUTATIONS=1000000 pytest libs/toolparse/tests/test_properties.py
MUTATIONS = int(os.environ.get("TOOLPARSE_MUTATIONS", "100000"))
EXAMPLES = settings(max_examples=25, deadline=None, database=None)

# Nothing escapes a key/value format's own tags, so texts with them are not its to carry.
PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>`]["), max_size=30)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abcxyz", min_size=1, max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "a": PLAIN,
        "n": st.integers(-(10**30), 10**30),
        "b": st.booleans(),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "o": st.dictionaries(st.text("abcxyz", min_size=1, max_size=5), JSON_VALUES, min_size=1),
        "l": st.lists(st.integers(), min_size=1, max_size=4),
    },
)
CALLS = st.lists(st.tuples(st.sampled_from("fg"), ARGUMENTS), min_size=1, max_size=3)


def carried(format: str, calls: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, Any]]:
    """The calls that a format can carry without loss: what its wire has no way to write is
    left out, and undeclared arguments come back as text from the formats without types."""
    kept = []
    for name, arguments in calls:
        own = dict(arguments)
        if name == "g" and untyped(format):
            own = {k: v for k, v in own.items() if isinstance(v, str)}
        if name == "g" and guesses(format):
            own = {k: v for k, v in own.items() if not isinstance(v, str) or not is_json(v)}
        if format == "minimax-m3":
            # Elements inside an object have no declared type.
            own.pop("o", None)
        if format == "minicpm5":
            # White space around CDATA and line ends are the XML reader's.
            own = {k: v for k, v in own.items() if not isinstance(v, str) or v == v.strip()}
        kept.append((name, own))
    return kept


def untyped(format: str) -> bool:
    """Whether a value's type comes from the schema alone."""
    text = written(format, [("g", {"n": 1})])
    parsed = toolparse.parse(text, format, None)
    return parsed.calls[0].arguments == {"n": "1"}


def guesses(format: str) -> bool:
    """Whether an undeclared text that looks like JSON is read as JSON."""
    parsed = toolparse.parse(written(format, [("g", {"n": "0"})]), format, None)
    return parsed.calls[0].arguments == {"n": 0}


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("format", GRAMMARS)
def test_what_the_writer_writes_is_read_back(format: str) -> None:
    @EXAMPLES
    @given(CALLS)
    def check(drawn: list[tuple[str, dict[str, Any]]]) -> None:
        calls = carried(format, drawn)
        text = written(format, calls)
        parsed = toolparse.parse(text, format, TOOLS)
        assert [e.kind for e in parsed.errors] == []
        assert [(c.name, c.arguments) for c in parsed.calls] == calls
        lenient = toolparse.parse(text, format, TOOLS, "lenient")
        assert view(lenient) == view(parsed)
        assert all(call.repairs == () for call in lenient.calls)

    check()


@pytest.mark.parametrize("format", GRAMMARS)
def test_any_cut_into_chunks_gives_the_one_shot_result(format: str) -> None:
    @EXAMPLES
    @given(st.integers(0, 10**6), st.data())
    def check(seed: int, data: st.DataObject) -> None:
        text = Texts(seed).text(format)
        raw = text.encode("utf-8", "replace")
        mode = data.draw(st.sampled_from(["strict", "lenient"]))
        sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
        whole = toolparse.parse(raw, format, TOOLS, mode)
        stream = toolparse.Stream(format, TOOLS, mode)
        given_out: list[toolparse.Call] = []
        at = turn = 0
        while at < len(raw):
            size = sizes[turn % len(sizes)]
            given_out += stream.feed(raw[at : at + size])
            at, turn = at + size, turn + 1
        early = stream.attempts
        given = attempts_of([call for call in early if call.ok])
        assert given == attempts_of(whole.calls)[: len(given)]
        if all(call.status != "in_reasoning" for call in whole.attempts):
            # A lone close tag of reasoning takes back what was refused before it.
            assert attempts_of(early) == attempts_of(whole.attempts)[: len(early)]
        assert [c.byte_span for c in given_out] == [c.byte_span for c in early if c.ok]
        assert view(stream.finish()) == view(whole)

    check()


def test_no_mutated_text_raises_and_clean_ones_need_no_repair() -> None:
    texts = Texts(MUTATIONS)
    kinds: set[str] = set()
    for count in range(MUTATIONS):
        format = GRAMMARS[count % len(GRAMMARS)]
        text = texts.text(format)
        parsed = toolparse.parse(text, format, TOOLS)
        assert parsed.content is not None
        for call in parsed.calls:
            json.dumps(call.arguments, ensure_ascii=False, allow_nan=False).encode()
        kinds.update(error.kind for error in parsed.errors)
        if count % 7 == 0:
            lenient = toolparse.parse(text, format, TOOLS, "lenient")
            if not parsed.errors:
                assert view(lenient) == view(parsed), (format, text)
            toolparse.parse(text, format, TOOLS, "sglang")
            assert parsed.counts and parsed.to_dict() and grammar_of(format)
    assert len(kinds) >= 14


@given(st.text() | st.binary(), st.sampled_from(GRAMMARS), st.booleans())
@settings(max_examples=400, deadline=None, database=None)
def test_no_text_at_all_raises(text: str | bytes, format: str, thinking: bool) -> None:
    for mode in ("strict", "lenient", "sglang"):
        parsed = toolparse.parse(text, format, TOOLS, mode, thinking=thinking)
        assert parsed.counts["too_deep"] == 0
