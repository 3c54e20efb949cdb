"""Every template of the shared data, on every conversation, against full renders."""

import pytest
from conversations import CONVERSATIONS
from driving import TEMPLATES, check_forked, check_kept, load_template
from profile_table import read_table, row_of
from tokendelta import Profile, Session, TemplateError

pytestmark = pytest.mark.skipif(not TEMPLATES, reason="TURNWISE_SHARED_DATA is not set")


@pytest.mark.parametrize("name", TEMPLATES)
def test_kept_ids_equal_the_full_render_or_the_rewrite_is_reported(name) -> None:
    tokenizer = load_template(name)
    assert check_kept(tokenizer, Profile.from_tokenizer(tokenizer)) >= 12


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_fork_gives_exactly_what_the_engine_would_be_sent(name) -> None:
    tokenizer = load_template(name)
    check_forked(tokenizer, Profile.from_tokenizer(tokenizer))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_that_a_template_refuses_is_a_typed_error(name) -> None:
    session = Session(Profile.from_tokenizer(load_template(name)))
    try:
        session.start([{"role": "system", "content": "Only a system message."}])
    except TemplateError:
        assert session.segments == 0


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_profile_is_the_one_in_the_golden_table(name) -> None:
    profile = Profile.from_tokenizer(load_template(name))
    assert row_of(name, profile.findings) == read_table()[name]


def test_the_golden_table_has_every_template_and_no_other() -> None:
    assert sorted(read_table()) == TEMPLATES
    assert len(CONVERSATIONS) >= 12
