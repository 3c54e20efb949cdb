from random import Random

import miniatures
import pytest
from chat_tokenizer import ChatTokenizer
from qwen_vocabulary import qwen_tokenizer
from tokendelta import Profile, Session
from tokenizers import AddedToken

MESSAGES = [{"role": "user", "content": "Hello."}]
ALPHABETS = ([0x20, 0x0A, 0x61, 0x27, 0x31, 0x2E], range(0x20, 0x7F), range(0xA0, 0x250))


@pytest.fixture(scope="module")
def qwen():
    tokenizer = qwen_tokenizer(miniatures.GROUPED_TOOLS)
    if tokenizer is None:
        pytest.skip("dashscope is not installed")
    return tokenizer


def random_text(rnd):
    alphabet = rnd.choice([*ALPHABETS, range(0x370, 0x3000), range(0x3000, 0xD800)])
    return "".join(chr(rnd.choice(alphabet)) for _ in range(rnd.randint(0, 40)))


def test_qwens_ids_are_those_of_the_published_vocabulary(qwen) -> None:
    assert len(qwen) == 151669
    known = {
        "<|endoftext|>": 151643,
        "<|im_start|>": 151644,
        "<|im_end|>": 151645,
        "<tool_call>": 151657,
        "</tool_call>": 151658,
        "<tool_response>": 151665,
        "</tool_response>": 151666,
        "<think>": 151667,
        "</think>": 151668,
    }
    assert {text: qwen.convert_tokens_to_ids(text) for text in known} == known
    assert qwen.encode("Hello, world!") == [9707, 11, 1879, 0]
    assert qwen.encode("<think>\n\n</think>\n\n") == [151667, 271, 151668, 271]


def test_the_fast_encoder_gives_the_tokenizers_ids(qwen) -> None:
    profile = Profile.from_tokenizer(qwen)
    assert profile.fast
    rnd = Random(11)
    specials = list(profile.specials.by_text)
    for _ in range(3000):
        text = random_text(rnd) + rnd.choice(["", *specials]) + random_text(rnd)
        assert profile.encoder.encode(text) == qwen.encode(text, add_special_tokens=False)


def test_both_encoders_give_the_same_session(qwen) -> None:
    prompts = []
    for encoder in ("auto", "huggingface"):
        session = Session(Profile.from_tokenizer(qwen, encoder=encoder))
        session.start([{"role": "system", "content": "Long. " * 400}, *MESSAGES])
        said = qwen.encode("Good day.<|im_end|>")
        session.append_sampled(said, [-0.5] * len(said))
        prompts.append(session.append_env([{"role": "tool", "content": "e\u0301 <|im_end|> é"}]))
    assert prompts[0].tolist() == prompts[1].tolist()


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_a_tokenizer_that_strips_around_special_tokens_is_encoded_whole(kind) -> None:
    more = [AddedToken("<|im_end|>", special=True, rstrip=True)]
    tokenizer = ChatTokenizer(miniatures.APPEND_ONLY, kind=kind, more=more)
    profile = Profile.from_tokenizer(tokenizer)
    assert not profile.fast and not profile.specials.plain
    session = Session(profile)
    session.start(MESSAGES)
    said = tokenizer.encode("<|im_start|>Good day.<|im_end|>")[1:]
    session.append_sampled(said, [-0.5] * len(said))
    prompt = session.append_env([{"role": "user", "content": "  More.  "}]).tolist()
    body = "<|im_start|>user\n  More.  <|im_end|>\n<|im_start|>assistant\n"
    assert prompt[-len(tokenizer.encode(body)) :] == tokenizer.encode(body)
    assert tokenizer.encode("<|im_end|>\n<|im_start|>")[1] == tokenizer.encode("<|im_start|>")[0]


def test_a_vocabulary_of_another_kind_is_left_to_the_tokenizer() -> None:
    assert not Profile.from_tokenizer(miniatures.load("append-only", "pieces")).fast
    assert Profile.from_tokenizer(miniatures.load("append-only", "bytes")).fast


def test_an_encoder_that_disagrees_on_a_probe_is_not_used() -> None:
    tokenizer = miniatures.load("append-only")

    class Changed(ChatTokenizer):
        def encode(self, text, add_special_tokens=False):
            return [*super().encode(text), 7]

    tokenizer.__class__ = Changed
    profile = Profile.from_tokenizer(tokenizer)
    assert not profile.fast
    assert profile.encoder.encode("x")[-1] == 7


def test_long_prompts_are_remembered_by_part_and_still_exact(qwen) -> None:
    profile = Profile.from_tokenizer(qwen, encoder="huggingface")
    rnd = Random(3)
    for _ in range(30):
        parts = [random_text(rnd) * rnd.choice([1, 40]) for _ in range(4)]
        text = "<|im_start|>".join(parts) + rnd.choice(["", "<|im_end|>"])
        for _ in range(2):
            assert profile.encoder.encode_long(text) == qwen.encode(text, add_special_tokens=False)
