"""Our own small templates: every class of behaviour without any model's data."""

import pytest
from driving import check_forked, check_kept
from miniatures import MINIATURES, load
from tokendelta import Profile


def findings(name):
    return Profile.from_tokenizer(load(name)).findings


def effects(name, turn, env, earlier=False):
    return findings(name).change(turn, earlier, env).effect


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize("name", MINIATURES)
def test_kept_ids_equal_the_full_render_or_the_rewrite_is_reported(name, kind) -> None:
    tokenizer = load(name, kind)
    assert check_kept(tokenizer, Profile.from_tokenizer(tokenizer)) >= 7


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize("name", MINIATURES)
def test_a_fork_gives_exactly_what_the_engine_would_be_sent(name, kind) -> None:
    tokenizer = load(name, kind)
    check_forked(tokenizer, Profile.from_tokenizer(tokenizer))


@pytest.mark.parametrize("name", MINIATURES)
def test_the_owner_of_the_stop_token_is_found(name) -> None:
    assert findings(name).stop_style == MINIATURES[name].stop_style


@pytest.mark.parametrize("name", ["append-only", "no separator", "grouped tools", "json tools"])
def test_append_only_templates_need_no_render(name) -> None:
    found = findings(name)
    assert {change.effect for change in found.changes.values()} == {"append"}
    assert found.rules[("text", "user")].way == "literal"
    assert found.rules[("call", "tool")].way == "literal"


def test_contents_that_a_template_changes_are_changed_alike() -> None:
    assert findings("no separator").rules[("text", "user")].literals.transform == "strip"
    assert findings("json tools").rules[("call", "tool")].literals.transform == "json"


def test_dropped_thinking_is_a_rewrite_only_before_a_user() -> None:
    assert effects("drops thinking", "think", "user") == "rewrite"
    assert effects("drops thinking", "think_call", "tool") == "append"
    assert effects("drops thinking", "text", "user") == "append"
    assert effects("drops thinking", "text", "user", earlier=True) == "rewrite"
    assert findings("drops thinking").reasoning_close == "\n</think>\n\n"


def test_kept_thinking_is_append_only_unless_the_block_is_empty() -> None:
    found = findings("keeps thinking")
    rewritten = {key[0] for key, change in found.changes.items() if change.effect != "append"}
    assert rewritten == {"blank", "blank_call"}


def test_an_empty_block_that_is_shown_only_last_is_a_rewrite_of_its_own_kind() -> None:
    assert effects("drops thinking", "blank", "user") == "rewrite"
    assert effects("drops thinking", "blank_call", "tool") == "rewrite"


def test_a_generation_prompt_that_is_taken_back_rewrites_the_header() -> None:
    change = findings("prompt taken back").change("text", False, "user")
    assert change.effect == "rewrite" and change.where == ("header",)
    assert findings("prompt taken back").header == "different"


def test_headers_that_stop_a_turn_are_all_stop_tokens() -> None:
    assert findings("header stops").stops[:2] == ("<|user|>", "<|observation|>")


def test_the_terminator_of_the_last_turn_is_told_apart() -> None:
    found = findings("other last stop")
    assert found.last_stop == "<|return|>" and found.stops[0] == "<|end|>"


def test_what_depends_on_history_is_rendered_in_full() -> None:
    assert findings("counts tools").rules[("call", "tool")].way == "full"
    assert findings("counts tools").rules[("text", "user")].way == "literal"


def test_what_depends_on_the_calls_is_rendered_with_them() -> None:
    rule = findings("names calls").rules[("call", "tool")]
    assert rule.uses_calls and rule.way != "literal"


def test_a_tool_list_that_moves_rewrites_history() -> None:
    change = findings("tools move").change("text", False, "user")
    assert change.effect == "mixed" and "history" in change.where


def test_a_date_and_the_wrapping_of_tool_results_are_reported() -> None:
    assert findings("dated").dated and not findings("append-only").dated
    assert findings("grouped tools").tool_group == "one block"
    assert findings("append-only").tool_group == "separate"
    assert findings("strict").tool_group == "unknown"


@pytest.mark.parametrize("name", MINIATURES)
def test_the_report_is_text_and_plain_data(name) -> None:
    import json

    report = Profile.from_tokenizer(load(name)).report()
    assert json.loads(json.dumps(report.data)) == report.data
    assert "stop tokens" in str(report) and len(report.data["transitions"]) == 36
