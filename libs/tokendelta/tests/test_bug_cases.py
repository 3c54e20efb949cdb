"""Public bug reports about token accounting of several turns, by their number in our survey.

Each number names issues of other projects; the test is that the mechanism cannot occur here.
"""

import miniatures
import numpy as np
import pytest
from chat_tokenizer import ChatTokenizer
from tokendelta import (
    LengthError,
    LogprobError,
    Overflow,
    Profile,
    Session,
    TokenIdError,
    get_token_delta,
    pack,
)

HELLO = [{"role": "user", "content": "Hello."}]
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}] * 2,
}


def user(text):
    return {"role": "user", "content": text}


def tool(text):
    return {"role": "tool", "content": text}


class Chat:
    """A session over a miniature template, with what is needed to talk to it."""

    def __init__(self, name, **options):
        self.tokenizer = miniatures.load(name)
        self.profile = Profile.from_tokenizer(self.tokenizer)
        self.session = Session(self.profile, **options)

    def ids(self, text):
        return self.tokenizer.encode(text)

    def id(self, text):
        (token,) = self.ids(text)
        return token

    def say(self, text, finish="stop", message=None):
        ids = self.ids(text)
        return self.session.append_sampled(ids, [-0.5] * len(ids), finish, message=message)

    def render(self, messages):
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return self.tokenizer.encode(text)

    def sample(self):
        (sample,) = self.session.samples().samples
        return sample

    def decode(self, ids):
        return self.tokenizer.decode(ids)


def answered(name="append-only", **options):
    chat = Chat(name, **options)
    chat.session.start(HELLO)
    chat.say("Good day.<|im_end|>")
    chat.session.append_env([user("More.")])
    return chat


def test_01_the_separator_behind_the_stop_token_is_kept() -> None:
    chat = answered()
    good = {"role": "assistant", "content": "Good day."}
    assert chat.session.prompt.tolist() == chat.render([*HELLO, good, user("More.")])


def test_02_the_separator_is_never_trained() -> None:
    chat = answered()
    chat.say("Yes.<|im_end|>")
    sample = chat.sample()
    stops = np.flatnonzero(sample.ids == chat.id("<|im_end|>"))
    after = sample.ids[stops[1] + 1]
    assert chat.decode([after]) == "\n"
    assert sample.loss_mask[stops[1] + 1 - sample.prompt_length] == 0
    trained = sample.ids[sample.prompt_length :][sample.loss_mask == 1].tolist()
    assert trained == chat.ids("Good day.<|im_end|>") + chat.ids("Yes.<|im_end|>")


def test_03_thinking_that_a_template_drops_is_kept_or_forked_never_lost() -> None:
    thought = "<think>\nThey greet.\n</think>\n\nGood day.<|im_end|>"
    for policy, samples in (("keep", 1), ("fork", 2)):
        chat = Chat("drops thinking", on_rewrite=policy)
        chat.session.start(HELLO)
        chat.say(thought)
        chat.session.append_env([user("More.")])
        chat.say("<think>\nAgain.\n</think>\n\nYes.<|im_end|>")
        result = chat.session.samples()
        assert len(result.samples) == samples and not result.dropped
        assert chat.session.rewrites[0].where == "turn"


def test_04_and_05_every_turn_has_its_generation_prompt_with_mask_0() -> None:
    chat = answered()
    chat.say("Yes.<|im_end|>")
    chat.session.append_env([user("And?")])
    chat.say("No.<|im_end|>")
    sample = chat.sample()
    assert chat.decode(sample.ids).count("<|im_start|>assistant\n") == 3
    headers = [span for span in sample.spans if span.kind == "header"]
    assert len(headers) == 3 and not any(span.trained for span in headers)


def test_06_parallel_tool_results_are_one_group() -> None:
    chat = Chat("grouped tools")
    chat.session.start(HELLO)
    chat.say("<tool_call>f {}</tool_call><tool_call>f {}</tool_call><|im_end|>", message=CALLING)
    prompt = chat.session.append_env([tool("one"), tool("two")])
    tail = chat.decode(prompt)
    assert tail.count("<|im_start|>user") == 2 and tail.count("<tool_response>") == 2


def test_07_what_makes_the_compatible_function_raise_is_ordinary_here() -> None:
    chat = Chat("grouped tools")
    messages = [*HELLO, {"role": "assistant", "content": "calls"}, tool("one"), tool("two")]
    with pytest.raises(ValueError, match="rewrote history"):
        get_token_delta(chat.tokenizer, messages)
    chat.session.start(HELLO)
    chat.say("calls<|im_end|>")
    assert chat.session.append_env(messages[2:]).tolist() == chat.render(messages)


def test_08_to_10_no_fixed_prefix_leaks_into_a_delta() -> None:
    """The prefix of a rendered delta is chosen by audit; here every prefix but the right one adds
    an empty thinking block or moves the place of the last question."""
    chat = Chat("drops thinking")
    chat.session.start([{"role": "system", "content": "S."}, *HELLO])
    chat.say("Good day.<|im_end|>")
    prompt = chat.session.append_env([tool("late result"), user("More.")])
    assert "<think>" not in chat.decode(prompt)
    good = {"role": "assistant", "content": "Good day."}
    expected = [
        {"role": "system", "content": "S."},
        *HELLO,
        good,
        tool("late result"),
        user("More."),
    ]
    assert prompt.tolist() == chat.render(expected)


def test_11_a_message_without_its_calls_changes_no_recorded_id() -> None:
    first, second = Chat("append-only"), Chat("append-only")
    prompts = []
    for chat, message in ((first, CALLING), (second, {"role": "assistant", "content": ""})):
        chat.session.start(HELLO)
        chat.say("<tool_call>f {}</tool_call><|im_end|>", message=message)
        prompts.append(chat.session.append_env([tool("x")]).tolist())
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("policy", ["keep", "fork"])
def test_12_the_prompt_of_a_turn_is_what_is_trained_before_it(policy) -> None:
    chat = Chat("drops thinking", on_rewrite=policy)
    prompts = [chat.session.start(HELLO).tolist()]
    for turn in range(3):
        chat.say(f"<think>\nNo {turn}.\n</think>\n\nText {turn}.<|im_end|>")
        prompts.append(chat.session.append_env([user(f"Q{turn}")]).tolist())
    chat.say("End.<|im_end|>")
    seen = []
    for sample in chat.session.samples().samples:
        for span in sample.spans:
            if span.trained and (not seen or seen[-1][0] != span.turn):
                seen.append((span.turn, sample.ids[: span.start].tolist()))
    assert seen == list(enumerate(prompts))


def test_13_text_behind_a_special_token_gets_no_space_of_its_own() -> None:
    tokenizer = miniatures.load("append-only", "pieces")
    session = Session(Profile.from_tokenizer(tokenizer))
    session.start(HELLO)
    said = tokenizer.encode("<|im_start|>assistant\nZz.<|im_end|>")
    said = said[len(tokenizer.encode("<|im_start|>assistant\n")) :]
    session.append_sampled(said, [-0.5] * len(said))
    prompt = session.append_env([user("The end.")]).tolist()
    messages = [*HELLO, {"role": "assistant", "content": "Zz."}, user("The end.")]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt == tokenizer.encode(text)


def test_14_to_16_sampled_ids_are_never_encoded_again() -> None:
    """The ids spell a text whose encoding is shorter."""
    chat = Chat("append-only")
    spelled = [chat.id(letter) for letter in "order"]
    assert len(chat.ids("order")) < len(spelled)
    chat.session.start(HELLO)
    chat.session.append_sampled([*spelled, chat.id("<|im_end|>")], [-0.5] * 6)
    chat.session.append_env([user("More.")])
    chat.say("Yes.<|im_end|>")
    sample = chat.sample()
    assert sample.ids[sample.prompt_length :][:5].tolist() == spelled
    assert len(sample.loss_mask) == len(sample.logprobs) == len(sample.ids) - sample.prompt_length


def test_17_a_prompt_that_differs_is_classified_and_raises_nothing() -> None:
    chat = Chat("append-only")
    prompt = chat.ids("<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n")
    output = chat.ids("Good day.<|im_end|>")
    chat.session.ingest(prompt, output, [-0.5] * len(output))
    changed = [*prompt, *output]
    changed[-2] = chat.id("!")
    result = chat.session.ingest([*changed, *prompt], output, [-0.5] * len(output))
    assert result.kind == "drift" and result.agreed == len(prompt) + len(output) - 2
    kept = chat.session.samples()
    assert sum(sample.trained_tokens for sample in kept.samples) == 2 * len(output)


def test_18_drift_late_in_a_long_turn_loses_none_of_its_tokens() -> None:
    chat = Chat("append-only")
    prompt = chat.ids("<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n")
    long = chat.ids("word " * 1000)
    chat.session.ingest(prompt, long, [-0.5] * len(long))
    drifted = [*prompt, *long[:-1], chat.id("!")]
    chat.session.ingest(drifted, [5], [-0.5])
    assert sum(s.trained_tokens for s in chat.session.samples().samples) == len(long) + 1


@pytest.mark.parametrize("max_len", [10, 16, 17, 40])
def test_19_a_short_limit_gives_no_negative_and_no_empty_response(max_len) -> None:
    chat = answered()
    chat.say("Yes.<|im_end|>")
    result = chat.session.samples(max_len=max_len)
    for sample in result.samples:
        assert sample.response_length > 0 and sample.trained_tokens > 0
        assert len(sample.ids) <= max_len
    trained = sum(sample.trained_tokens for sample in result.samples)
    assert trained + sum(drop.tokens for drop in result.dropped) == len(
        chat.ids("Good day.<|im_end|>") + chat.ids("Yes.<|im_end|>")
    )


def test_20_a_shared_turn_is_trained_once_even_if_its_first_branch_is_cut() -> None:
    chat = Chat("append-only")
    chat.session.start(HELLO)
    chat.say("Good day.<|im_end|>")
    good = {"role": "assistant", "content": "Good day."}
    chat.session.append_env([user("A long question that goes on and on. " * 4)])
    chat.say("First.<|im_end|>")
    chat.session.sync([*HELLO, good, user("B?")])
    chat.say("Second.<|im_end|>")
    for max_len in (None, 40, 60):
        result = chat.session.samples(max_len=max_len)
        trained = sum(sample.trained_tokens for sample in result.samples)
        lost = sum(drop.tokens for drop in result.dropped)
        total = sum(len(chat.ids(t)) for t in ("Good day.<|im_end|>", "First.<|im_end|>"))
        assert trained + lost == total + len(chat.ids("Second.<|im_end|>"))
        turns = [s.turn for sample in result.samples for s in sample.spans if s.trained]
        assert turns.count(0) <= 2


def test_21_trained_tokens_always_have_log_probs_and_others_never() -> None:
    chat = answered()
    chat.say("Yes.<|im_end|>")
    sample = chat.sample()
    assert np.array_equal(np.isfinite(sample.logprobs), sample.loss_mask == 1)
    with pytest.raises(LengthError):
        chat.session.append_env([user("x")]) is None or chat.session.append_sampled([5, 6], [])


def test_22_interleaved_agents_keep_one_sample_each() -> None:
    chat = Chat("append-only")
    histories = {"A": [user("Main task A.")], "B": [user("Other task B.")]}
    for turn in range(3):
        for name in ("A", "B"):
            chat.session.sync(histories[name])
            text = f"{name} says {turn}."
            chat.say(f"{text}<|im_end|>")
            histories[name] += [{"role": "assistant", "content": text}, user(f"{name}{turn}")]
    assert len(chat.session.samples().samples) == 2


def test_23_the_weights_of_all_samples_of_an_episode_sum_to_1() -> None:
    chat = Chat("drops thinking", on_rewrite="fork")
    chat.session.start(HELLO)
    chat.say("<think>\nA.\n</think>\n\nGood day.<|im_end|>")
    chat.session.append_env([user("More.")])
    chat.say("<think>\nB.\n</think>\n\nYes, much more of it.<|im_end|>")
    samples = chat.session.samples().samples
    assert len(samples) == 2 and sum(sample.weight for sample in samples) == pytest.approx(1)
    ratio = samples[1].trained_tokens / samples[0].trained_tokens
    assert samples[1].weight / samples[0].weight == pytest.approx(ratio)


def test_24_to_27_lengths_come_from_what_was_sampled_not_from_ends() -> None:
    """No end-of-sequence token in the last turn, an environment between: both count right."""
    chat = answered()
    chat.say("cut off here", finish="length")
    sample = chat.sample()
    assert sample.trained_tokens == len(chat.ids("Good day.<|im_end|>")) + len(
        chat.ids("cut off here")
    )
    assert sample.response_length > sample.trained_tokens and sample.finish == "length"
    (batch,) = pack([sample], max_tokens=200)
    assert int(batch.loss_mask.sum()) == sample.trained_tokens


@pytest.mark.parametrize("text", ["Good day.", "Good day"])
def test_28_and_29_a_stop_token_that_the_engine_took_away_is_put_back_untrained(text) -> None:
    chat = Chat("append-only")
    chat.session.start(HELLO)
    chat.say(text, finish="stop" if text.endswith(".") else "length")
    prompt = chat.session.append_env([user("More.")]).tolist()
    said = {"role": "assistant", "content": text}
    assert prompt == chat.render([*HELLO, said, user("More.")])
    chat.say("Yes.<|im_end|>")
    sample = chat.sample()
    at = [span for span in sample.spans if span.kind == "stop"][0]
    assert not at.trained and sample.ids[at.start] == chat.id("<|im_end|>")


@pytest.mark.parametrize("name", ["drops thinking", "opens thinking"])
def test_30_a_turn_cut_inside_of_its_thinking_gets_the_block_closed_untrained(name) -> None:
    chat = Chat(name)
    chat.session.start(HELLO)
    opening = "" if name == "opens thinking" else "<think>\n"
    cut = chat.ids(f"{opening}I am still wondering")
    chat.session.append_sampled(cut, [-0.5] * len(cut), "length")
    text = chat.decode(chat.session.append_env([user("Go on.")]))
    assert "wondering\n</think>\n\n<|im_end|>\n<|im_start|>user" in text
    chat.say("Yes.<|im_end|>")
    assert chat.sample().loss_mask[: len(cut) + 1].tolist() == [1] * len(cut) + [0]


def test_31_a_stop_token_that_heads_another_message_is_replaced_and_reported() -> None:
    chat = Chat("header stops")
    chat.session.start(HELLO)
    chat.say("Good day.<|observation|>")
    prompt = chat.decode(chat.session.append_env([user("More.")]))
    assert "Good day.<|user|>\nMore." in prompt and "<|observation|>" not in prompt
    (drop,) = chat.session.samples().dropped
    assert (drop.turn, drop.tokens, drop.reason) == (0, 1, "header replaced")


def test_32_ids_that_do_not_spell_the_engines_text_are_refused() -> None:
    chat = Chat("append-only")
    chat.session.start(HELLO)
    ids = chat.ids("<tool_call>f</tool_call><|im_end|>")
    with pytest.raises(TokenIdError, match="decode to"):
        chat.session.append_sampled(ids, [-0.5] * len(ids), text="<tool_call>g</tool_call>")
    chat.session.append_sampled(ids, [-0.5] * len(ids), text="<tool_call>f</tool_call>")


def test_33_an_engine_that_saw_another_prompt_is_noticed() -> None:
    chat = Chat("append-only")
    prompt = chat.session.start(HELLO)
    with pytest.raises(LengthError, match="prompt tokens"):
        chat.session.append_sampled([5], [-0.5], prompt_tokens=len(prompt) + 1)
    chat.session.append_sampled([5], [-0.5], prompt_tokens=len(prompt))


def test_34_alternatives_in_place_of_a_log_prob_are_refused() -> None:
    chat = Chat("append-only")
    chat.session.start(HELLO)
    with pytest.raises(LogprobError, match="index 1"):
        chat.session.append_sampled([5, 6], [-0.5, {6: -0.5, 7: -0.1}])


def test_35_and_36_a_text_opens_once() -> None:
    chat = Chat("no separator")
    chat.session.start(HELLO)
    chat.say("Good day.<|im_end|>")
    prompt = chat.session.append_env([user("More.")]).tolist()
    assert prompt.count(chat.id("<|endoftext|>")) == 1


def test_37_and_38_one_cut_goes_through_all_streams() -> None:
    chat = answered()
    chat.session.append_sampled(
        chat.ids("Yes.<|im_end|>"), [-0.5] * len(chat.ids("Yes.<|im_end|>")), side={"version": 3}
    )
    whole = chat.sample()
    cut = chat.session.samples(max_len=len(whole.ids) - 1).samples[0]
    for sample in (whole, cut):
        size = len(sample.ids) - sample.prompt_length
        assert len(sample.loss_mask) == len(sample.logprobs) == size
        assert sample.spans[-1].stop == len(sample.ids)
        assert all(len(stream) == len(sample.ids) for stream in sample.side.values())


def test_39_there_is_one_mask() -> None:
    chat = answered()
    chat.say("cut", finish="length")
    sample = chat.sample()
    (batch,) = pack([sample], max_tokens=100)
    assert np.array_equal(batch.loss_mask[sample.prompt_length :], sample.loss_mask)


def test_40_and_41_tool_results_given_one_by_one_are_refused() -> None:
    from tokendelta import StateError

    chat = Chat("grouped tools")
    chat.session.start(HELLO)
    chat.say("calls<|im_end|>")
    chat.session.append_env([tool("one")])
    with pytest.raises(StateError):
        chat.session.append_env([tool("two")])


def test_42_a_tool_list_that_moves_is_a_fork_or_stays_where_it_was() -> None:
    listed = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for policy, lists in (("keep", 1), ("fork", 1)):
        chat = Chat("tools move", tools=listed, on_rewrite=policy)
        chat.session.start(HELLO)
        chat.say("Good day.<|im_end|>")
        prompt = chat.session.append_env([user("More.")])
        assert chat.session.rewrites[0].where == "history"
        moved = chat.decode(prompt).index("tools") > chat.decode(prompt).index("Hello.")
        assert moved == (policy == "fork")
        assert chat.decode(prompt).count("<|im_start|>tools") == lists


def test_an_answer_over_the_budget_is_typed_and_appends_nothing() -> None:
    chat = Chat("drops thinking", on_rewrite="fork", max_tokens=60)
    chat.session.start(HELLO)
    chat.say("<think>\nA.\n</think>\n\nGood day.<|im_end|>")
    before = chat.session.prompt.tolist()
    assert isinstance(chat.session.append_env([user("word " * 99)]), Overflow)
    assert chat.session.prompt.tolist() == before and chat.session.segments == 1


def test_a_tokenizer_with_merges_over_every_boundary_is_still_exact() -> None:
    """Newlines merge with each other and with what follows: headers end and contents begin so."""
    tokenizer = ChatTokenizer(miniatures.APPEND_ONLY)
    assert len(tokenizer.encode("\n\n")) == 1
    session = Session(Profile.from_tokenizer(tokenizer))
    session.start([user("\n\nHello.\n\n")])
    said = tokenizer.encode("Good day.<|im_end|>")
    session.append_sampled(said, [-0.5] * len(said))
    prompt = session.append_env([user("\n\n\nMore\n\n")]).tolist()
    messages = [user("\n\nHello.\n\n"), {"role": "assistant", "content": "Good day."}]
    text = tokenizer.apply_chat_template(
        [*messages, user("\n\n\nMore\n\n")], add_generation_prompt=True, tokenize=False
    )
    assert prompt == tokenizer.encode(text)
