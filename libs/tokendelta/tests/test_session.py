import numpy as np
import pytest
import tokendelta._core
from qwen_vocabulary import qwen_tokenizer
from tokendelta import (
    LengthError,
    LogprobError,
    MessageError,
    Overflow,
    Profile,
    Session,
    StateError,
    TokenIdError,
    pack,
    unpack,
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENING = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = qwen_tokenizer(CHATML)
    if tokenizer is None:
        pytest.skip("dashscope is not installed")
    return tokenizer


@pytest.fixture(scope="module")
def profile(tokenizer):
    return Profile.from_tokenizer(tokenizer)


def sampled(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    return ids, [-0.25] * len(ids)


def test_the_extension_is_compiled() -> None:
    assert tokendelta._core.__file__.endswith(".so")


def test_incremental_ids_equal_the_full_render(tokenizer, profile) -> None:
    session = Session(profile)
    session.start(OPENING)
    session.append_sampled(*sampled(tokenizer, "Good day.<|im_end|>"))
    question = {"role": "user", "content": "\n\n And  you? "}
    prompt = session.append_env([question])
    conversation = [*OPENING, {"role": "assistant", "content": "Good day."}, question]
    text = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    assert prompt.tolist() == tokenizer.encode(text, add_special_tokens=False)
    assert prompt.dtype == np.int32 and not prompt.flags.writeable


def test_only_sampled_tokens_are_trained(tokenizer, profile) -> None:
    session = Session(profile)
    session.start(OPENING)
    first, scores = sampled(tokenizer, "One.<|im_end|>")
    session.append_sampled(first, scores)
    session.append_env([{"role": "user", "content": "More."}])
    second, _ = sampled(tokenizer, "Two.<|im_end|>")
    session.append_sampled(second, [-0.5] * len(second))
    (sample,) = session.samples().samples
    assert len(sample.ids) == sample.prompt_length + len(sample.loss_mask)
    trained = sample.ids[sample.prompt_length :][sample.loss_mask == 1]
    assert trained.tolist() == first + second
    assert np.array_equal(np.isnan(sample.logprobs), sample.loss_mask == 0)
    assert sample.weight == 1.0


def test_an_append_over_the_budget_appends_nothing(tokenizer, profile) -> None:
    session = Session(profile, max_tokens=40)
    prompt = session.start(OPENING)
    ids, scores = sampled(tokenizer, "x" * 400)
    assert isinstance(session.append_sampled(ids, scores), Overflow)
    assert session.prompt.tolist() == prompt.tolist()
    assert session.append_sampled(*sampled(tokenizer, "Yes.<|im_end|>")) is None
    before = session.prompt.tolist()
    answer = session.append_env([{"role": "user", "content": "long " * 100}])
    assert isinstance(answer, Overflow) and answer.available == 40 - len(before)
    assert session.prompt.tolist() == before
    assert not isinstance(session.append_env([{"role": "user", "content": "ok"}]), Overflow)


def test_a_turn_cut_by_length_gets_a_stop_token_that_is_not_trained(tokenizer, profile) -> None:
    session = Session(profile)
    session.start(OPENING)
    cut, scores = sampled(tokenizer, "I was about to")
    session.append_sampled(cut, scores, "length")
    session.append_env([{"role": "user", "content": "Go on."}])
    session.append_sampled(*sampled(tokenizer, "say.<|im_end|>"))
    (sample,) = session.samples().samples
    at = sample.prompt_length + len(cut)
    assert sample.ids[at] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert sample.loss_mask[len(cut)] == 0 and np.isnan(sample.logprobs[len(cut)])


@pytest.mark.parametrize(
    ("ids", "scores", "error"),
    [
        ([1, 2], [-0.1], LengthError),
        ([1, -1], [-0.1, -0.1], TokenIdError),
        ([1, 10**7], [-0.1, -0.1], TokenIdError),
        ([1, 2.5], [-0.1, -0.1], TokenIdError),
        ([1, 2], [-0.1, float("nan")], LogprobError),
        ([1, 2], [-0.1, 0.5], LogprobError),
        ([1, 2], [-0.1, None], LogprobError),
    ],
)
def test_bad_input_leaves_the_session_unchanged(profile, ids, scores, error) -> None:
    session = Session(profile)
    before = session.start(OPENING).tolist()
    with pytest.raises(error, match="turn 0"):
        session.append_sampled(ids, scores)
    assert session.prompt.tolist() == before
    session.append_sampled([1, 2], [-0.1, -0.2])


def test_calls_out_of_order_are_refused(profile) -> None:
    session = Session(profile)
    with pytest.raises(StateError):
        session.append_sampled([1], [-0.1])
    session.start(OPENING)
    with pytest.raises(StateError):
        session.append_env([{"role": "user", "content": "?"}])
    with pytest.raises(StateError):
        session.start(OPENING)


@pytest.mark.parametrize("messages", [[], [{"role": "robot", "content": "x"}], ["x"]])
def test_what_is_no_message_is_refused(profile, messages) -> None:
    with pytest.raises(MessageError, match="start"):
        Session(profile).start(messages)


def test_packing_loses_nothing(tokenizer, profile) -> None:
    samples = []
    for turns in range(1, 6):
        session = Session(profile)
        session.start(OPENING)
        for turn in range(turns):
            session.append_sampled(*sampled(tokenizer, f"Turn {turn}.<|im_end|>"))
            session.append_env([{"role": "user", "content": "Next."}])
        samples.extend(session.samples().samples)
    batches = pack(samples, max_tokens=120)
    assert all(len(batch.ids) <= 120 for batch in batches)
    for sample, (ids, mask, logprobs) in zip(samples, unpack(batches), strict=True):
        assert np.array_equal(ids, sample.ids)
        assert np.array_equal(mask[sample.prompt_length :], sample.loss_mask)
        assert not mask[: sample.prompt_length].any()
        assert np.array_equal(logprobs[sample.prompt_length :], sample.logprobs, equal_nan=True)
