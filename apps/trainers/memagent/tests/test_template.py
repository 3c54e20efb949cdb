"""Prompts of ids are the chat template's own, with memory and section as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokendelta
from hypothesis import given
from hypothesis import strategies as st
from turnwise.testing import byte_profile, byte_tokenizer, decode, encode

from apps.trainers.memagent.laptop.warmstart import laptop_method, make_tokenizer
from apps.trainers.memagent.prompts import MEMORY, PROBLEM, SECTION, Prompts, make_prompts
from apps.trainers.memagent.template import Template

WORDS = st.lists(
    st.text("abcdefghijklmnopqrstuvwxyzABCXYZ", min_size=1, max_size=8), min_size=1, max_size=8
).map(" ".join)
ALL = [
    (name, order) for name in ("full", "compact") for order in ("problem-first", "section-first")
]


def rendered(tokenizer: Any, prompt: str, **values: str) -> list[int]:
    """The ids of the template's own render."""
    places = {PROBLEM: "problem", MEMORY: "memory", SECTION: "section"}
    content = "".join(values[places[part]] if part in places else part for part in prompt)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


LAPTOP = make_tokenizer(laptop_method(), 1)
PROFILES = {
    "bytes": (byte_tokenizer(), byte_profile()),
    "words": (LAPTOP, tokendelta.Profile.from_tokenizer(LAPTOP)),
}


@pytest.mark.parametrize("name", PROFILES)
@given(WORDS, WORDS, WORDS, st.sampled_from(ALL))
def test_the_ids_of_a_prompt_are_those_of_the_templates_render(
    name: str, problem: str, memory: str, section: str, kind: Any
) -> None:
    tokenizer, profile = PROFILES[name]
    prompts = make_prompts(*kind)
    template = Template(profile, prompts)
    encoded = [template.encode(text) for text in (problem, memory, section)]
    assert template.update(*encoded).tolist() == rendered(
        tokenizer, prompts.update, problem=problem, memory=memory, section=section
    )
    assert template.final(*encoded[:2]).tolist() == rendered(
        tokenizer, prompts.final, problem=problem, memory=memory
    )


def test_a_section_that_breaks_a_character_is_shown_as_it_is() -> None:
    template = Template(byte_profile(), make_prompts("full", "problem-first"))
    cut = template.encode("день")[:3]
    ids = template.update(template.encode("p"), template.nothing, cut)
    at = len(encode(decode(ids).partition("<section>\n")[0] + "<section>\n"))
    assert cut.tolist() == ids[at : at + 3].tolist()


def test_a_memory_is_what_was_sampled_without_stop_and_control_tokens() -> None:
    template = Template(byte_profile(), make_prompts("full", "problem-first"))
    start, end = byte_tokenizer().convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    sampled = np.array([5, start, 6, end], dtype=np.int32)
    assert template.memory(sampled).tolist() == [5, 6]


@pytest.mark.parametrize("kind", ALL)
def test_a_prompt_asks_with_everything_and_the_last_one_without_a_section(kind: Any) -> None:
    prompts = make_prompts(*kind)
    assert all(prompts.update.count(place) == 1 for place in (PROBLEM, MEMORY, SECTION))
    assert all(prompts.final.count(place) == 1 for place in (PROBLEM, MEMORY))
    assert SECTION not in prompts.final


def test_the_section_comes_first_where_siblings_share_its_prefix() -> None:
    def places(prompts: Prompts) -> list[str]:
        return sorted((PROBLEM, MEMORY, SECTION), key=prompts.update.index)

    assert places(make_prompts("full", "problem-first")) == [PROBLEM, MEMORY, SECTION]
    assert places(make_prompts("full", "section-first")) == [SECTION, PROBLEM, MEMORY]
