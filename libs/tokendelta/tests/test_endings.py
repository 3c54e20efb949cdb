"""How a turn ends where the template writes more than one token, and what it looks up in a turn."""

import miniatures
import pytest
from chat_tokenizer import ChatTokenizer
from tokendelta import Overflow, Profile, RewriteError, Session, TemplateError, TokenIdError

HELLO = [{"role": "user", "content": "Hello."}]
GOOD = {"role": "assistant", "content": "Good day!"}
MORE = {"role": "user", "content": "More."}
ENDINGS = {"long ending": "<|end_text|>", "text ending": "\n(over)"}


def talk(name, kind="bytes", **options):
    tokenizer = miniatures.load(name, kind)
    session = Session(Profile.from_tokenizer(tokenizer), **options)
    session.start(HELLO)
    return tokenizer, session


def say(tokenizer, session, text, finish="stop", message=None):
    ids = tokenizer.encode(text)
    session.append_sampled(ids, [-0.5] * len(ids), finish, message=message)


def render(tokenizer, messages):
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(text)


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize("name", ENDINGS)
def test_an_ending_of_several_tokens_is_written_once(name, kind) -> None:
    tokenizer, session = talk(name, kind)
    assert Profile.from_tokenizer(tokenizer).findings.ending == ENDINGS[name] + "<|im_end|>"
    for text in ("Good day!", ""):
        say(tokenizer, session, f"{text}{ENDINGS[name]}<|im_end|>")
        prompt = tokenizer.decode(session.append_env([MORE]))
        assert prompt.count(f"{text}{ENDINGS[name]}<|im_end|>\n<|start|>user") >= 1
        assert prompt.count("<|im_end|><") == 0 and session.rewrites == []
    wanted = [*HELLO, GOOD, MORE, {"role": "assistant", "content": ""}, MORE]
    # Text of its own gets a space from the SentencePiece-like tokenizer.
    assert prompt.replace(" ", "") == tokenizer.decode(render(tokenizer, wanted)).replace(" ", "")


@pytest.mark.parametrize("name", ENDINGS)
@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("part", [0, 1, None])
def test_what_is_missing_of_an_ending_is_put_back_untrained(name, finish, part) -> None:
    """The engine took the stop token away, or the turn was cut before or inside of the ending."""
    tokenizer, session = talk(name)
    begun = ENDINGS[name] if part is None else ENDINGS[name][:part]
    if name == "long ending" and part == 1:
        begun = ""
    say(tokenizer, session, "Good day!" + begun, finish)
    trained = len(session.prompt)
    prompt = session.append_env([MORE])
    assert tokenizer.decode(prompt) == tokenizer.decode(render(tokenizer, [*HELLO, GOOD, MORE]))
    say(tokenizer, session, "Yes.")
    (sample,) = session.samples().samples
    assert sample.loss_mask[trained - sample.prompt_length] == 0


@pytest.mark.parametrize("name", ENDINGS)
def test_a_turn_that_ends_in_its_own_way_is_kept_and_noted(name) -> None:
    tokenizer, session = talk(name)
    say(tokenizer, session, "Good day!<|im_end|>")
    prompt = tokenizer.decode(session.append_env([MORE]))
    assert "Good day!<|im_end|>\n<|start|>user" in prompt
    assert [(r.where, r.certain) for r in session.rewrites] == [("stop", True)]


@pytest.mark.parametrize("name", ENDINGS)
def test_the_ending_is_no_part_of_what_a_turn_says(name) -> None:
    tokenizer, session = talk(name)
    say(tokenizer, session, f"Good day!{ENDINGS[name]}<|im_end|>")
    prompt = session.sync([*HELLO, GOOD, MORE]).tolist()
    assert session.segments == 1
    assert tokenizer.decode(prompt) == tokenizer.decode(render(tokenizer, [*HELLO, GOOD, MORE]))


def test_reasoning_before_a_tool_result_is_remembered_where_the_result_needs_no_look() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    said = {"role": "assistant", "content": "I look.", "reasoning_content": "why"}
    messages = [{**said, "tool_calls": [call]}, {"role": "assistant", "content": "Done."}]
    for policy, segments in (("keep", 1), ("fork", 2)):
        tokenizer, session = talk("forgets thinking", on_rewrite=policy)
        text = "<think>why</think>\nI look.<tool_call>f {}</tool_call><|observation|>"
        say(tokenizer, session, text, message=messages[0])
        session.append_env([{"role": "tool", "content": "seven"}])
        say(tokenizer, session, "<think></think>\nDone.<|user|>", message=messages[1])
        prompt = session.append_env([MORE])
        assert [r.where for r in session.rewrites] == ["history"] and session.segments == segments
    wanted = [*HELLO, messages[0], {"role": "tool", "content": "seven"}, messages[1], MORE]
    assert prompt.tolist() == render(tokenizer, wanted)


def test_reasoning_that_is_shown_before_calls_alone_is_known_and_its_loss_noticed() -> None:
    found = Profile.from_tokenizer(miniatures.load("thinks before calls")).findings
    assert (found.reasoning_open, found.reasoning_close) == ("<think>\n", "\n</think>")
    said = {**calling("f"), "reasoning_content": "why"}
    text = '<think>\nwhy\n</think>\n<tool_call>f {"key": "7"}</tool_call><|im_end|>'
    for policy, segments in (("keep", 1), ("fork", 2)):
        tokenizer, session = talk("thinks before calls", on_rewrite=policy)
        say(tokenizer, session, text, message=said)
        session.append_env([{"role": "tool", "content": "seven"}])
        say(tokenizer, session, "Good day!<|im_end|>", message=GOOD)
        prompt = session.append_env([MORE])
        assert [r.where for r in session.rewrites] == ["history"] and session.segments == segments
    messages = [*HELLO, said, {"role": "tool", "content": "seven"}, GOOD, MORE]
    assert prompt.tolist() == render(tokenizer, messages)


def calling(name="find_user"):
    function = {"name": name, "arguments": {"key": "7"}}
    call = {"id": "c1", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.parametrize("policy", ["keep", "fork", "error"])
def test_a_template_that_looks_up_a_call_nobody_told_it_is_never_passed_over(policy) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "Anna"}
    text = '<tool_call>find_user {"key": "7"}</tool_call><|im_end|>'
    tokenizer, session = talk("looks up calls", on_rewrite=policy)
    say(tokenizer, session, text)
    before = session.prompt.tolist()
    if policy == "error":
        with pytest.raises(RewriteError, match="give append_sampled the turn as `message`"):
            session.append_env([result])
        assert session.prompt.tolist() == before
        return
    session.append_env([result])
    assert ("message", False) in [(r.where, r.certain) for r in session.rewrites]
    tokenizer, session = talk("looks up calls", on_rewrite=policy)
    say(tokenizer, session, text, message=calling())
    prompt = session.append_env([result])
    assert "tool of find_user\nAnna" in tokenizer.decode(prompt)
    assert not any(r.certain or r.where == "message" for r in session.rewrites)


class Padded(ChatTokenizer):
    """A tokenizer that raises for ids it has no token for, as slow ones do."""

    def decode(self, token_ids, skip_special_tokens=False):
        assert all(0 <= token < len(self) for token in token_ids)
        return super().decode(token_ids, skip_special_tokens)


@pytest.mark.parametrize("name", ["append-only", "drops thinking", "long ending"])
@pytest.mark.parametrize("policy", ["keep", "fork"])
def test_an_id_between_the_tokenizer_and_the_model_is_the_policys_own_token(name, policy) -> None:
    tokenizer = Padded(miniatures.MINIATURES[name].template)
    size = len(tokenizer)
    profile = Profile.from_tokenizer(tokenizer, vocab_size=size + 8)
    session = Session(profile, on_rewrite=policy, verify="always")
    session.start(HELLO)
    ids = [
        *tokenizer.encode("<think>\nx\n</think>\n\nGood"),
        size,
        size + 7,
        *tokenizer.encode("!"),
    ]
    session.append_sampled(ids, [-0.5] * len(ids), text="<think>\nx\n</think>\n\nGood!")
    assert not isinstance(session.append_env([MORE]), Overflow)
    assert not isinstance(session.sync([*HELLO, GOOD, {**MORE, "content": "Less."}]), Overflow)
    (sample,) = session.samples().samples
    assert sample.ids[sample.prompt_length :].tolist()[: len(ids)] == ids
    assert [span.trained for span in sample.spans].count(True) > 0
    session.append_sampled([1], [-0.5])
    with pytest.raises(TokenIdError, match=f"id {size + 8} at index 1"):
        session.append_env([MORE])
        session.append_sampled([1, size + 8], [-0.5, -0.5])


def test_by_default_the_vocabulary_is_the_tokenizers() -> None:
    tokenizer, session = talk("append-only")
    with pytest.raises(TokenIdError, match="give Profile its vocab_size"):
        session.append_sampled([len(tokenizer)], [-0.5])
    with pytest.raises(ValueError, match="vocab_size is 0"):
        Profile.from_tokenizer(tokenizer, vocab_size=0)


@pytest.mark.parametrize("template", ["", "  \n", "{% for m in messages %}{% endfor %}"])
def test_a_template_that_renders_nothing_is_one_clear_error(template) -> None:
    with pytest.raises(TemplateError, match="renders nothing"):
        Profile.from_tokenizer(ChatTokenizer(template))


def test_a_prompt_that_renders_to_nothing_is_refused_and_opens_no_segment() -> None:
    only_users = miniatures.APPEND_ONLY.replace("if add_generation_prompt", "if false").replace(
        "{% for m in messages %}", "{% for m in messages if m.role != 'system' %}"
    )
    session = Session(Profile.from_tokenizer(ChatTokenizer(only_users)))
    with pytest.raises(TemplateError, match="renders nothing for messages of system"):
        session.start([{"role": "system", "content": "S."}])
    assert session.segments == 0


def test_a_template_that_ignores_the_flag_or_prints_the_time_is_said() -> None:
    def warnings(template):
        return Profile.from_tokenizer(ChatTokenizer(template)).report().data["warnings"]

    assert warnings(miniatures.APPEND_ONLY) == [] == warnings(miniatures.DATED)
    (ignored,) = warnings(miniatures.ALWAYS_PROMPTS)
    assert "ignores add_generation_prompt" in ignored
    (timed,) = warnings(miniatures.DATED.replace("%d %b %Y", "%d %b %Y %H:%M"))
    assert "prints the time" in timed
    report = Profile.from_tokenizer(ChatTokenizer(miniatures.ALWAYS_PROMPTS)).report()
    assert "warning: the template ignores add_generation_prompt" in str(report)
