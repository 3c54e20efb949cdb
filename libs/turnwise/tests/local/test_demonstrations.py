"""What a warm start is made with: a speaker, its turns as sequences, a tokenizer, a folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokendelta
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer
from turnwise.config import ConfigError
from turnwise.engine import SamplingParams
from turnwise.local.demonstrations import Speaker, joined
from turnwise.local.supervised import build_model, refuse_existing, save_policy
from turnwise.local.tokenizer import train_tokenizer

PIECES = r" ?[a-z]+|\n|[^a-z\n]+"
MARKER = "<tool_call>"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    texts = ["user\nassistant\n what was said"] * 4
    return train_tokenizer(
        texts, pieces=PIECES, vocab_size=300, max_tokens=64, markers=(MARKER, "</tool_call>")
    )


class Echo(Speaker):
    """Says how long the prompt is, in a call."""

    def say(self, prompt_ids: NDArray[np.int32]) -> str:
        assert self.read(prompt_ids).endswith("<|im_start|>assistant\n")
        return f"{MARKER}{len(prompt_ids)}"


def spoken(tokenizer: Any, text: str) -> tokendelta.Sample:
    session = tokendelta.Session(tokendelta.Profile.from_tokenizer(tokenizer))
    prompt: Any = session.start([{"role": "user", "content": text}])
    said = asyncio.run(Echo(tokenizer).generate(prompt, SamplingParams(), session_id="s"))
    session.append_sampled(said.ids, said.logprobs, finish=said.finish)
    return session.samples().samples[0]


def test_a_speakers_words_are_learnt_and_its_prompt_is_not(tokenizer: Any) -> None:
    samples = [spoken(tokenizer, text) for text in ("was said", "what")]
    found = joined(samples, [True, False])
    assert len(found) == 2 and found.flawed.tolist() == [True, False]
    for at, sample in enumerate(samples):
        part = slice(found.offsets[at], found.offsets[at + 1])
        np.testing.assert_array_equal(found.ids[part], sample.ids)
        said = tokenizer.decode(found.ids[part][found.trained[part]])
        assert said == f"{MARKER}{sample.prompt_length}<|im_end|>"


def test_a_marker_is_one_token_and_stays_in_a_decoded_turn(tokenizer: Any) -> None:
    ids = tokenizer.encode(MARKER, add_special_tokens=False)
    assert len(ids) == 1 and tokenizer.decode(ids, skip_special_tokens=True) == MARKER


def test_a_policy_is_loaded_as_it_was_written_and_never_written_over(
    tokenizer: Any, tmp_path: Path
) -> None:
    out = tmp_path / "policy"
    refuse_existing(out)
    model: Any = build_model(
        tokenizer, hidden_size=64, intermediate_size=64, layers=1, max_tokens=64, seed=0
    )
    save_policy(model, tokenizer, out, {"steps": 0})
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert (out / "warmstart.json").read_text() == '{\n  "steps": 0\n}\n'
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert loaded.num_parameters() == model.num_parameters()
    assert AutoTokenizer.from_pretrained(out).chat_template == tokenizer.chat_template
    with pytest.raises(ConfigError, match="exists; name another"):
        refuse_existing(out)
