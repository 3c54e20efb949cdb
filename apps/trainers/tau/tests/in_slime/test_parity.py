"""The same episode on the local backend and through slime's hooks: the same ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tokendelta
import torch
from slime_standin.desk import Desk, openings, prompts, scores, words
from taubench.users import OfflineUser
from transformers import Qwen3Config, Qwen3ForCausalLM
from turnwise.engine import Engine, SamplingParams
from turnwise.engine.scripted import Reply, ScriptedEngine, reply
from turnwise.engine.torch_engine import TorchEngine
from turnwise.episode import Episode
from turnwise.policy import Policy
from turnwise.rollout import derive_seed
from turnwise.slime import generate
from turnwise.testing.servers import Call, FakeSGLang, Turn

from apps.trainers.tau.method import TauMethod
from apps.trainers.tau.tests.playing import play, rollout

PARAMS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 96}
EPISODES = 4


@pytest.fixture
def model() -> Any:
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=8192,
        initializer_range=0.4,
    )
    made: Any = Qwen3ForCausalLM(config)
    with torch.no_grad():
        # A turn should end by itself now and then.
        made.lm_head.weight[2] *= 1.5
    return made.eval()


def row(index: int) -> Any:
    sample = prompts(index + 1)[index]
    sample.index = index
    return sample


async def local(
    engine: Engine, profile: tokendelta.Profile, index: int, limit: int, **how: Any
) -> Episode:
    """As the embedded trainer plays it."""
    task = next(task for task in openings().values() if task.index == row(index).prompt)
    policy = Policy(
        engine=engine,
        profile=profile,
        max_context_tokens=8192,
        sampling=SamplingParams(max_new_tokens=limit),
    )
    seed = derive_seed(42, "train", index)
    return await play(policy, rollout(task, seed=seed), max_turns=8, **how)


def patient_user() -> OfflineUser:
    """Says everything at once and stays for four idle turns."""
    return OfflineUser(opening="everything", patience=4)


def assert_same(episode: Episode, sample: Any, tolerance: float = 0.0) -> None:
    (segment,) = episode.segments
    assert sample.tokens == segment.ids.tolist()
    assert sample.loss_mask == segment.loss_mask.tolist()
    logprobs = np.nan_to_num(segment.logprobs, nan=0.0)
    assert np.abs(np.float32(sample.rollout_log_probs) - logprobs).max() <= tolerance
    assert sample.metadata["turnwise"]["ending"] == episode.ending.label
    assert sample.reward == episode.score


async def test_scripted_turns_give_the_same_ids_on_both_backends(
    args: Callable[..., Any], server: FakeSGLang, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_answer", Desk(tokenizer, asks=1).answer)

    def say(prompt: Any) -> Reply:
        ids = tokenizer.encode(words(tokenizer.decode(prompt.tolist()), 1))
        ids = [*ids, tokenizer.eos_token_id]
        return reply(ids, logprobs=scores(ids))

    profile = tokendelta.Profile.from_tokenizer(tokenizer)
    limit = 1024
    for index in range(EPISODES):
        got = await generate(args(), row(index), {**PARAMS, "max_new_tokens": limit})
        episode = await local(ScriptedEngine(say), profile, index, limit)
        assert episode.score == 1.0 and len(episode.segments[0].ids) > 1000
        assert_same(episode, got)


async def test_a_sampling_model_gives_the_same_ids_on_both_backends(
    args: Callable[..., Any],
    server: FakeSGLang,
    tokenizer: Any,
    model: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = TorchEngine(model)
    profile = tokendelta.Profile.from_tokenizer(tokenizer)

    async def answer(call: Call) -> Turn:
        asked = call.body["sampling_params"]
        params = SamplingParams(
            temperature=asked["temperature"],
            max_new_tokens=asked["max_new_tokens"],
            stop_token_ids=tuple(asked["stop_token_ids"]),
            seed=asked["sampling_seed"],
        )
        prompt = np.array(call.body["input_ids"], dtype=np.int32)
        turn = await engine.generate(prompt, params, session_id=f"http/{call.session}")
        return Turn(turn.ids.tolist(), turn.logprobs.tolist(), turn.finish)

    monkeypatch.setattr(server, "_answer", answer)
    monkeypatch.setattr(TauMethod, "__init__", _with_patient_user(TauMethod.__init__))
    arguments = args(sglang_enable_deterministic_inference=True)
    turns = 0
    for index in range(EPISODES):
        got = await generate(arguments, row(index), dict(PARAMS))
        episode = await local(_LowBits(engine), profile, index, 96, make_user=patient_user)
        # What is in the prefix cache differs, and so does the last bit of a sum.
        assert_same(episode, got, tolerance=1e-4)
        turns += int(episode.metrics["turns"])
    assert turns > EPISODES, "no episode had a second turn"
    await engine.close()


def _with_patient_user(init: Callable[..., None]) -> Callable[..., None]:
    return lambda self, options: init(self, options, make_user=patient_user)


class _LowBits:
    """The engine as a server sees it: a seed has 31 bits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def generate(self, prompt_ids: Any, params: Any, *, session_id: str) -> Any:
        low = replace(params, seed=params.seed & (2**31 - 1))
        return await self._engine.generate(prompt_ids, low, session_id=session_id)

    async def release(self, session_id: str) -> None:
        await self._engine.release(session_id)

    async def close(self) -> None:
        await self._engine.close()
