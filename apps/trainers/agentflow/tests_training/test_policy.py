"""The planner in the repository: what its card says of it holds."""

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

from apps.trainers.agentflow.laptop.baselines import CEILING
from apps.trainers.agentflow.laptop.method import laptop_method
from apps.trainers.agentflow.laptop.warmstart import WarmstartConfig

FOLDER = Path(__file__).parent.parent / "policy"


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(FOLDER)


def test_it_is_small_and_of_the_stated_shape(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 5_000_000
    assert 1_000_000 < model.num_parameters() < 2_500_000
    assert model.config.model_type == "qwen3" and len(tokenizer) == model.config.vocab_size
    assert f"{model.num_parameters():,}" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_commands_defaults_are_its_recipe() -> None:
    made = json.loads((FOLDER / "warmstart.json").read_text(encoding="utf-8"))["settings"]
    defaults = WarmstartConfig().model_dump(mode="json")
    assert {name: defaults[name] for name in made} == made


def test_what_presents_a_tool_is_one_token_to_it(loaded: tuple[Any, Any]) -> None:
    async def lines() -> list[str]:
        async with laptop_method() as method:
            toolbox = method.helpers.toolbox
            prompt = method.helpers.prompts.analysis("1 + 1?", toolbox, max_steps=3)
            names = toolbox.names
            return [line for line in prompt.splitlines() if line.startswith(names)]

    found = asyncio.run(lines())
    assert len(found) == 2
    for line in found:
        newline_and_line = loaded[1].encode(f"\n{line}", add_special_tokens=False)
        assert len(newline_and_line) == 2, "prompts changed: run :warmstart again"


def test_it_keeps_the_form_mostly_and_leans_on_neither_tool(
    loaded: tuple[Any, Any],
) -> None:
    model, tokenizer = loaded
    profile = tokendelta.Profile.from_tokenizer(tokenizer)

    async def play() -> tuple[list[Episode], dict[str, float]]:
        async with laptop_method(eval_per_cell=3) as method:
            tasks = {row.id: method.task(row) for row in method.rows("tune")}
            engine = TorchEngine(model, rows=64, context=512)
            policy = Policy(
                engine=engine,
                profile=profile,
                max_context_tokens=512,
                sampling=SamplingParams(max_new_tokens=64),
            )
            episodes = await asyncio.gather(
                *(
                    method.run(
                        Rollout(
                            task=task,
                            task_id=name,
                            rollout_id=f"{name}/{trial}",
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
    total = {
        name: sum(episode.metrics[name] for episode in episodes)
        for name in ("malformed", "turns", "tool/python_coder", "tool/base_generator")
    }
    assert 0.1 < total["malformed"] / (total["turns"] - len(episodes)) < 0.4
    coder = total["tool/python_coder"] / (total["tool/python_coder"] + total["tool/base_generator"])
    assert 0.3 < coder < 0.7
    score = sum(episode.score or 0.0 for episode in episodes) / len(episodes)
    assert 0.3 < score < min(fixed.values()) + 0.05 < fixed[CEILING] == 1.0
