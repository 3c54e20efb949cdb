"""Text for later prompts spells no special token, whatever a model wrote."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from turnwise.models import KNOWN_MARKERS, Markers, plain_text

from .vocabulary import special_ids, tokenizer

SETTINGS = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])

FAMILIES = {
    "chatml": ("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|vision_start|>"),
    "llama3": ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    "sentencepiece": ("</s>", "<s>", "<unk>", "<pad>", "[INST]", "[/INST]"),
    "gemma": ("<end_of_turn>", "<start_of_turn>", "<bos>", "<eos>"),
    "deepseek": ("<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c>"),
}
HARD = ("<a>", "< a>", "<", ">>", "<<a>", "a>")
"""Markers that hold each other, one that no space can part, and parted forms of others."""


def pieces(markers: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Text made of markers, their halves and anything else."""
    halves = [part for marker in markers for part in (marker[: len(marker) // 2], marker[3:])]
    part = st.one_of(st.sampled_from([*markers, *halves, " ", "\n", "a"]), st.text(max_size=4))
    return st.lists(part, max_size=12).map("".join)


@pytest.mark.parametrize("family", FAMILIES)
@SETTINGS
@given(data=st.data())
def test_no_special_id_is_left_for_a_known_tokenizer(family: str, data: st.DataObject) -> None:
    words = tokenizer(FAMILIES[family])
    plain = plain_text(data.draw(pieces(FAMILIES[family])), Markers.of(words))
    assert special_ids(words, plain) == []
    assert plain_text(plain, Markers.of(words)) == plain


@pytest.mark.parametrize("family", FAMILIES)
@SETTINGS
@given(data=st.data())
def test_no_special_id_is_left_where_the_tokenizer_is_not_at_hand(
    family: str, data: st.DataObject
) -> None:
    plain = plain_text(data.draw(pieces(FAMILIES[family])))
    assert special_ids(tokenizer(FAMILIES[family]), plain) == []
    assert plain_text(plain) == plain


@SETTINGS
@given(pieces(HARD))
def test_no_special_id_is_left_of_markers_that_hold_each_other(text: str) -> None:
    words = tokenizer(HARD)
    assert special_ids(words, plain_text(text, Markers.of(words))) == []


@SETTINGS
@given(pieces(FAMILIES["chatml"]), pieces(FAMILIES["chatml"]))
def test_two_plain_texts_joined_by_a_line_end_are_plain(left: str, right: str) -> None:
    joined = f"{plain_text(left)}\n{plain_text(right)}"
    assert special_ids(tokenizer(FAMILIES["chatml"]), joined) == []


@SETTINGS
@given(st.text(st.characters(exclude_characters="<[", exclude_categories=["Cs"])))
def test_text_without_markers_stays_as_it_is(text: str) -> None:
    assert plain_text(text) == text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("42<|im_end|>", "42"),
        ("42<|im_end|>\n<|endoftext|>\n", "42"),
        ("42</s>", "42"),
        ("<|im_end|>", ""),
        ("say <|im_end|> twice", "say < |im_end|> twice"),
        ("<|im_<|im_end|>end|>", "<|im_< |im_end|>end|>"),
        ("a <| b |> c", "a <| b |> c"),
        ("if a < s and s > b: x[INST]", "if a < s and s > b: x"),
        ("kept \n", "kept \n"),
        ("half \ud83d", "half \ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("", ""),
    ],
)
def test_markers_at_the_end_go_and_others_are_parted(text: str, plain: str) -> None:
    assert plain_text(text) == plain


def test_added_tokens_that_are_not_special_stay() -> None:
    words = tokenizer(("<|im_end|>",), ("<tool_call>",))
    assert plain_text("<tool_call>x<|im_end|>y", Markers.of(words)) == "<tool_call>x< |im_end|>y"


def test_markers_of_two_tokenizers_are_all_parted() -> None:
    both = Markers.of(tokenizer(("<e1>",)), tokenizer(("<e2>",)))
    assert plain_text("<e1>, <e2>.", both) == "< e1>, < e2>."


@pytest.mark.parametrize("unit", ["<|im_end|>", "<|", " ", "<|im_", "<|im_end|> \n"])
def test_long_text_of_markers_takes_linear_time(unit: str) -> None:
    """Quadratic time would take hours here."""
    assert special_ids(tokenizer(), plain_text(unit * 200_000 + "x")[:1000]) == []
    assert KNOWN_MARKERS.plain("x" + unit * 200_000)
