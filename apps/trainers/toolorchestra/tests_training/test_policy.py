"""The policy in the repository: what its card says of it holds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tokendelta
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from turnwise.engine import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.episode import Episode
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed

from apps.trainers.toolorchestra.laptop.baselines import CEILING
from apps.trainers.toolorchestra.laptop.method import laptop_method
from apps.trainers.toolorchestra.laptop.warmstart import WarmstartConfig
from apps.trainers.toolorchestra.prompts import opening

FOLDER = Path(__file__).parent.parent / "policy"


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(FOLDER)


def test_it_is_small_and_of_the_stated_shape(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 5_000_000
    assert 500_000 < model.num_parameters() < 2_000_000
    assert model.config.model_type == "qwen3" and len(tokenizer) == model.config.vocab_size
    assert f"{model.num_parameters():,}" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_commands_defaults_are_its_recipe() -> None:
    made = json.loads((FOLDER / "warmstart.json").read_text(encoding="utf-8"))["settings"]
    defaults = WarmstartConfig().model_dump(mode="json")
    assert {name: defaults[name] for name in made} == made


def test_its_tokenizer_knows_the_words_of_a_prompt(loaded: tuple[Any, Any]) -> None:
    async def prompts() -> list[str]:
        async with laptop_method() as method:
            tasks = [method.task(row) for row in method.rows("unseen")]
            return [str(opening(task, "compact")[0]["content"]) for task in tasks]

    for prompt in asyncio.run(prompts()):
        assert len(loaded[1].encode(prompt)) < 110, "the prompt changed: run :warmstart again"


def test_it_keeps_the_form_mostly_and_is_no_better_than_fixed_routes(
    loaded: tuple[Any, Any],
) -> None:
    model, tokenizer = loaded
    profile = tokendelta.Profile.from_tokenizer(tokenizer)

    async def play() -> tuple[list[Episode], dict[str, float]]:
        async with laptop_method(eval_per_cell=2) as method:
            tasks = {row.id: method.task(row) for row in method.rows("tune")}
            engine = TorchEngine(model, rows=64, context=320)
            policy = Policy(
                engine=engine,
                profile=profile,
                max_context_tokens=320,
                sampling=SamplingParams(max_new_tokens=48),
            )
            episodes = await asyncio.gather(
                *(
                    method.run(
                        Rollout(
                            task=task,
                            task_id=name,
                            rollout_id=f"{name}#{trial}",
                            group_id=name,
                            seed=derive_seed(1, name, trial),
                        ),
                        policy,
                    )
                    for name, task in tasks.items()
                    for trial in range(2)
                )
            )
            await engine.close()
            return list(episodes), dict(await method.baselines(tasks, tokenizer, profile))

    episodes, fixed = asyncio.run(play())
    assert all(episode.ending.by_policy for episode in episodes)
    malformed = sum(episode.ending.label == "stopped:format" for episode in episodes)
    assert 0 < malformed / len(episodes) < 0.3
    score = sum(episode.score or 0.0 for episode in episodes) / len(episodes)
    best = fixed.pop(CEILING)
    assert 0.25 < score < max(fixed.values()) < best
