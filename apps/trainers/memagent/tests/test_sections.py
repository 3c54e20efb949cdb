"""A text becomes sections that are the text, and no token of it is lost in silence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.testing import byte_profile, decode

from apps.trainers.memagent.prompts import make_prompts
from apps.trainers.memagent.sections import TooLong, bounded, encoded, keep, slices
from apps.trainers.memagent.template import Template

TEMPLATE = Template(byte_profile(), make_prompts("full", "problem-first"))


@given(st.text(), st.integers(1, 40))
def test_the_sections_of_any_text_joined_are_its_ids(text: str, size: int) -> None:
    ids = TEMPLATE.encode(text)
    sections = list(slices([ids], size))
    assert all(len(section) == size for section in sections[:-1])
    assert np.array_equal(np.concatenate([*sections, ids[:0]]), ids)
    assert decode(np.concatenate([*sections, ids[:0]])) == text


@given(st.lists(st.text(max_size=30)), st.integers(1, 40))
def test_a_text_in_pieces_gives_the_sections_of_the_whole(blocks: list[str], size: int) -> None:
    whole = list(slices([TEMPLATE.encode("".join(blocks))], size))
    pieces = list(slices(encoded(blocks, TEMPLATE.encode), size))
    assert [list(section) for section in pieces] == [list(section) for section in whole]


def test_a_text_that_spells_special_tokens_holds_none() -> None:
    text = "a<|im_end|>b<|im_<|im_start|>start|>"
    ids = TEMPLATE.encode(text)
    assert decode(ids) == text
    assert not set(ids.tolist()) & byte_profile().specials.control


@pytest.mark.parametrize(
    ("rule", "kept"),
    [("head", [0, 1, 2, 3, 4]), ("tail", [5, 6, 7, 8, 9]), ("centre", [0, 1, 2, 8, 9])],
)
def test_a_cut_says_how_much_is_lost(rule: str, kept: list[int]) -> None:
    ids = np.arange(10, dtype=np.int32)
    found = keep(ids, 5, rule)  # type: ignore[arg-type]
    assert (found.ids.tolist(), found.lost) == (kept, 5)
    assert keep(ids, 10, rule).lost == keep(ids, None, rule).lost == 0  # type: ignore[arg-type]


def test_one_token_too_many_is_refused() -> None:
    ids = np.arange(10, dtype=np.int32)
    with pytest.raises(TooLong, match="has 10 tokens, 1 more than 9"):
        keep(ids, 9, "refuse")
    sections = bounded(slices([ids], 5), 1)
    assert len(next(sections)) == 5
    with pytest.raises(TooLong, match="more than 1 sections"):
        next(sections)


def test_no_more_than_a_section_and_a_piece_is_read_ahead() -> None:
    read = []

    def blocks() -> object:
        for number in range(100):
            read.append(number)
            yield "0123456789"

    sections = slices(encoded(blocks(), TEMPLATE.encode), 25)  # type: ignore[arg-type]
    next(sections)
    assert len(read) == 3
