"""The tokenizer, the demonstrations and the training that make the policy."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokendelta
import torch
from turnwise.config import ConfigError
from turnwise.local.demonstrations import Demonstrations

from apps.trainers.toolorchestra.laptop.demonstrations import (
    HELPED,
    Habit,
    Uninformed,
    corpus,
    demonstrated,
    kind,
    record,
    specialist,
    thought,
)
from apps.trainers.toolorchestra.laptop.method import laptop_method
from apps.trainers.toolorchestra.laptop.tokenizer import train_tokenizer
from apps.trainers.toolorchestra.laptop.warmstart import WarmstartConfig, main, warmstart
from apps.trainers.toolorchestra.laptop.world import read_problem
from apps.trainers.toolorchestra.task import Defaults, Task, to_task

COUNT = 81


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(corpus(1, 300))


async def recorded(tokenizer: Any, seed: int, flaw_share: float = 0.3) -> Demonstrations:
    async with laptop_method() as method:
        profile = tokendelta.Profile.from_tokenizer(tokenizer)
        return await record(
            method, tokenizer, profile, seed=seed, count=COUNT, flaw_share=flaw_share
        )


@pytest.fixture(scope="module")
def made(tokenizer: Any) -> Demonstrations:
    return asyncio.run(recorded(tokenizer, 2))


def tasks(count: int = COUNT) -> list[Task]:
    return [to_task(row, Defaults()) for row in demonstrated(2, count)]


def test_only_what_was_said_is_learnt(tokenizer: Any, made: Demonstrations) -> None:
    assert len(made) == COUNT and made.ids.max() < len(tokenizer)
    for start, stop in zip(made.offsets[:-1], made.offsets[1:], strict=True):
        ids, trained = made.ids[start:stop], made.trained[start:stop]
        said = tokenizer.decode(ids[trained])
        assert said.endswith("<|im_end|>") and "<|im_start|>" not in said
        assert ", cost " in said and trained[-1] and not trained[0]


def test_the_same_seed_gives_the_same_demonstrations(tokenizer: Any, made: Demonstrations) -> None:
    again, other = (asyncio.run(recorded(tokenizer, seed)) for seed in (2, 3))
    assert np.array_equal(made.ids, again.ids) and not np.array_equal(made.ids, other.ids)


def test_flaws_are_counted_and_without_them_every_call_reaches_somebody(
    tokenizer: Any, made: Demonstrations
) -> None:
    assert 0.2 < made.flawed.mean() < 0.6
    assert not asyncio.run(recorded(tokenizer, 2, 0.0)).flawed.any()


def test_a_thought_is_right_and_says_nothing_of_what_anybody_is_worth() -> None:
    for task in tasks():
        problem = read_problem(task.question)
        assert problem is not None
        first, able = thought(task, problem, None), specialist(task, problem)
        who = "nobody" if able is None else able.role
        cost = f"cost {task.preferences['cost']:g}"
        assert first == f"{problem.subject} {who}, {kind(problem)}, {cost}"
        assert able is None or able.ability == problem.subject
        assert thought(task, problem, f"It is the {problem.about}.") == "found"
        assert thought(task, problem, "No document was found.") == "nothing"


def test_habits_differ_between_kinds_and_not_with_who_is_there() -> None:
    kept: dict[str, set[tuple[Any, ...]]] = {}
    for task in tasks(270):
        problem = read_problem(task.question)
        assert problem is not None
        habit = Habit(task, problem)
        about = f"{problem.subject} {kind(problem)} {task.preferences['cost']}"
        kept.setdefault(about, set()).add((habit._favourite, habit._helped, habit._search))
    assert len(kept) == 27 and all(len(found) == 1 for found in kept.values())
    favourites, helped, _ = zip(*(next(iter(found)) for found in kept.values()), strict=True)
    assert set(favourites) == {0, 1, 2} and set(helped) == set(HELPED)


def test_a_loop_that_reads_a_turn_otherwise_is_a_bug(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(self: Uninformed, prompt_ids: Any) -> str:
        self.flaws.append(None)
        return "I don't know."

    monkeypatch.setattr(Uninformed, "say", silent)
    with pytest.raises(RuntimeError, match="demonstration/0"):
        asyncio.run(recorded(tokenizer, 2))


@pytest.mark.parametrize("text", ["", "héé 日本 \n\n\t x", "a_b(c): d", "\ud7ff\u2028"])
def test_any_text_comes_back(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_recipe_makes_a_policy_and_writes_over_none(tmp_path: Path) -> None:
    small = WarmstartConfig(
        out=tmp_path / "policy",
        dialogues=27,
        steps=2,
        hidden_size=64,
        layers=1,
        batch_tokens=1_024,
        threads=torch.get_num_threads(),
    )
    assert warmstart(small)["episodes"] == 27
    made = json.loads((tmp_path / "policy" / "warmstart.json").read_text())
    assert made["settings"]["dialogues"] == 27 and "out" not in made["settings"]
    with pytest.raises(ConfigError, match="exists"):
        main(["--out", str(tmp_path / "policy")])
