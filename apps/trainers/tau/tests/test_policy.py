"""The policy in the repository: what the model card says of it holds."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tokendelta
import torch
from taubench.splits import family_splits
from transformers import AutoModelForCausalLM, AutoTokenizer
from turnwise.engine import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.episode import Episode
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed

from apps.trainers.tau.tests.playing import play
from apps.trainers.tau.warmstart import WarmstartConfig

FOLDER = Path(__file__).parent.parent / "policy"


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(FOLDER)


def test_it_is_small_and_of_the_stated_shape(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 8_000_000
    assert 2_000_000 < model.num_parameters() < 4_000_000
    assert model.config.model_type == "qwen3" and len(tokenizer) == model.config.vocab_size
    assert f"{model.num_parameters():,}" in (FOLDER / "README.md").read_text()


def test_the_commands_defaults_are_its_recipe() -> None:
    made = json.loads((FOLDER / "warmstart.json").read_text())["settings"]
    del made["device"]
    defaults = WarmstartConfig().model_dump(mode="json")
    assert {name: defaults[name] for name in made} == made


def test_its_sampled_pass_rate_leaves_something_to_learn(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    profile = tokendelta.Profile.from_tokenizer(tokenizer)

    async def evaluate() -> list[Episode]:
        engine = TorchEngine(model, rows=25, context=1024)
        policy = Policy(
            engine=engine,
            profile=profile,
            max_context_tokens=1024,
            sampling=SamplingParams(max_new_tokens=128),
        )
        episodes = await asyncio.gather(
            *(
                play(
                    policy,
                    Rollout(
                        task=task,
                        task_id=task.id,
                        rollout_id=f"{task.id}/{trial}",
                        group_id=task.id,
                        seed=derive_seed(1, task.id, trial),
                    ),
                )
                for task in family_splits().tune
                for trial in range(2)
            )
        )
        await engine.close()
        return list(episodes)

    episodes = asyncio.run(evaluate())
    assert all(episode.ending.by_policy for episode in episodes)
    # 50 episodes: two standard errors of 0.07 around 0.375.
    assert 0.23 < sum(episode.score or 0.0 for episode in episodes) / len(episodes) < 0.52
