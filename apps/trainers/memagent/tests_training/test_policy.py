"""The policy in the repository: what its card says of it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from apps.trainers.memagent.laptop.stories import rows
from apps.trainers.memagent.laptop.warmstart import WarmstartConfig
from apps.trainers.memagent.prompts import make_prompts

FOLDER = Path(__file__).parent.parent / "policy"


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(FOLDER)


def test_it_is_small_and_of_the_stated_shape(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 5_000_000
    assert 900_000 < model.num_parameters() < 4_000_000
    assert model.config.model_type == "qwen3" and len(tokenizer) == model.config.vocab_size
    assert f"{model.num_parameters():,}" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_commands_defaults_are_its_recipe() -> None:
    made = json.loads((FOLDER / "warmstart.json").read_text(encoding="utf-8"))["settings"]
    defaults = WarmstartConfig().model_dump(mode="json")
    assert {name: defaults[name] for name in made} == made


def test_a_word_is_a_token_to_it(loaded: tuple[Any, Any]) -> None:
    for row in rows("held-out", per_cell=4):
        text = row.metadata["context"]
        assert len(loaded[1].encode(text)) == len(text.replace(".", " .").split())


def test_the_prompts_are_those_it_was_shown(loaded: tuple[Any, Any]) -> None:
    prompts = make_prompts("compact", "problem-first")
    for prompt in (prompts.update, prompts.final):
        words = [line for line in prompt.splitlines() if line.isascii()]
        assert all(len(loaded[1].encode(line)) <= 2 for line in words), "run :warmstart again"
