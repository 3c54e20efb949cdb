"""The compiled scanners against their plain-Python twin, and the fast paths against the
general one."""

from __future__ import annotations

import json
import random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from toolparse.driver.api import source_of
from toolparse.driver.run import Run
from toolparse.grammars.table import grammar_of
from toolparse.scan import find, json_value, plain
from toolparse_support import GRAMMARS, TOOLS, Texts, view

FAST = tuple(f for f in GRAMMARS if getattr(grammar_of(f), "tags", None) is not None)
ALPHABET = '{}[]",:\\u"dD8e0123456789.+-eE truefalsn\n\té'
SETTINGS = settings(max_examples=1500, deadline=None, database=None)


@SETTINGS
@given(st.text(ALPHABET, max_size=60))
@example('{"a": 1, "\\u0061": 2}')
@example('{"a": "\\ud83d\\ude00", "b": "\\ud83d"}')
@example("1.7976931348623157e308")
@example("1.7976931348623159e308")
@example("[1e400]")
@example("-")
@example('{"a":{"b":1,"b":2},"c":{"a":1}}')
def test_the_json_scanner_agrees_with_its_twin_on_any_text(text: str) -> None:
    data = text.encode()
    assert json_value.json_value(data, 0, len(data)) == plain.json_value(data, 0, len(data))


def test_the_json_scanner_agrees_with_its_twin_on_damaged_json() -> None:
    pick = random.Random(7)
    keys = ["a", "b", "é", "\u2028"] + [f"k{i}" for i in range(40)]
    for _ in range(4000):
        many: dict[str, object] = {
            key: pick.choice([1, "x", None, [], {"a": 2.5}]) for key in pick.sample(keys, 30)
        }
        text = json.dumps({"o": many, "s": "q\n"}, ensure_ascii=pick.random() < 0.5)
        raw = bytearray(text.encode())
        for _ in range(pick.randrange(3)):
            raw[pick.randrange(len(raw))] = pick.choice(ALPHABET[:-1].encode())
        data = raw.decode("utf-8", "replace").encode()
        assert json_value.json_value(data, 0, len(data)) == plain.json_value(data, 0, len(data))


def test_the_json_scanner_takes_what_the_json_module_takes() -> None:
    pick = random.Random(3)
    for _ in range(4000):
        text = "".join(pick.choice(ALPHABET) for _ in range(pick.randrange(12)))
        data = text.encode()
        code, end, duplicate, _ = json_value.json_value(data, 0, len(data))
        try:
            json.loads(text)
        except ValueError:
            assert not (code == 0 and end == len(data)), text
            continue
        if code == 0 and duplicate < 0 and text == text.strip():
            assert end == len(data)


@SETTINGS
@given(
    st.text("<>/tool_cal \n", max_size=40),
    st.lists(st.sampled_from(["<t", "</t", "<tool_call>", " ", "\n<"]), max_size=4, unique=True),
    st.integers(0, 10),
)
def test_the_tag_search_agrees_with_its_twin(text: str, tags: list[str], pos: int) -> None:
    data, markers = text.encode(), tuple(tag.encode() for tag in tags)
    assert find.find_any(data, pos, len(data), markers) == plain.find_any(
        data, pos, len(data), markers
    )


def test_the_fast_paths_agree_with_the_general_path_where_they_answer() -> None:
    texts = Texts(11)
    answered = 0
    for count in range(12_000):
        format = FAST[count % len(FAST)]
        grammar = grammar_of(format)
        text = texts.text(format)
        tools = None if count % 3 == 0 else TOOLS
        thinking = count % 5 == 0
        fast = grammar.fast(source_of(text), tools, thinking)
        if fast is None:
            continue
        answered += 1
        for lenient in (False, True):
            run = Run(grammar, source_of(text), tools, lenient, thinking)
            run.advance(True)
            assert view(run.result()) == view(fast), (format, text)
    assert answered > 3000
