"""The tokenizer, the demonstrations and the training that make the planner."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokendelta
import torch
from turnwise.config import ConfigError
from turnwise.local.demonstrations import Demonstrations
from turnwise.local.supervised import Schedule, replay_batches

from apps.trainers.agentflow.laptop.demonstrations import (
    FLAWS,
    HABITS,
    analysis,
    corpus,
    demonstrated,
    habit,
    next_step,
    play,
    record,
)
from apps.trainers.agentflow.laptop.method import laptop_method
from apps.trainers.agentflow.laptop.problems import make_problems
from apps.trainers.agentflow.laptop.supervised import POOL, build_model, train
from apps.trainers.agentflow.laptop.tokenizer import train_tokenizer
from apps.trainers.agentflow.laptop.warmstart import WarmstartConfig, main, warmstart
from apps.trainers.agentflow.parse import Malformed, NextStep, read_step

COUNT = 84
WORDS = ("word", "fact", "measure")


@pytest.fixture(scope="module")
def made() -> tuple[Any, Demonstrations]:
    async def make() -> tuple[Any, Demonstrations]:
        async with laptop_method(on_malformed="retry") as found:
            tokenizer = train_tokenizer(corpus(found, seed=1, count=200), vocab_size=900)
            profile = tokendelta.Profile.from_tokenizer(tokenizer)
            shared: dict[str, Any] = {"seed": 2, "count": COUNT, "flaw_share": 0.3}
            one = await record(found, tokenizer, profile, **shared, concurrency=1)
            many = await record(found, tokenizer, profile, **shared, concurrency=16)
            for name in ("ids", "trained", "offsets", "flawed"):
                np.testing.assert_array_equal(getattr(one, name), getattr(many, name))
            return tokenizer, one

    return asyncio.run(make())


def turns(tokenizer: Any, data: Demonstrations) -> list[tuple[str, str]]:
    """Prompt and what was said, of every turn."""
    found = []
    for start, stop in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        ids, trained = data.ids[start:stop], data.trained[start:stop]
        assert trained[-trained.sum() :].all()
        found.append((tokenizer.decode(ids[~trained]), tokenizer.decode(ids[trained])))
    return found


def test_demonstrations_do_not_depend_on_how_many_are_played_at_once(
    made: tuple[Any, Demonstrations],
) -> None:
    tokenizer, data = made
    assert len(data) > 2 * COUNT and data.ids.max() < len(tokenizer)


def test_only_the_planners_words_are_trained_on(made: tuple[Any, Demonstrations]) -> None:
    for prompt, said in turns(*made):
        assert prompt.startswith("<|im_start|>user\n") and prompt.endswith("assistant\n")
        assert said.endswith("<|im_end|>") and said.count("<|im_end|>") == 1
        assert said.startswith(("The question is about", "Sub-Goal", "Tool Name"))


def test_no_demonstration_is_of_a_tune_or_held_out_problem() -> None:
    kept_away = {
        problem.id
        for split in ("tune", "held-out")
        for problem in make_problems(split, per_cell=50, seed=3)
    }
    assert not kept_away & {problem.id for problem in demonstrated(1, 500)}


def test_habits_have_nothing_to_do_with_what_the_tools_are_worth() -> None:
    """Questions of words and of formulas alike: some kinds lean on the coder, others do not."""
    problems = make_problems("train", per_cell=5, seed=1)
    words = {analysis(p.text): habit(p.text) for p in problems if p.family in WORDS}
    formulas = {analysis(p.text): habit(p.text) for p in problems if p.family not in WORDS}
    assert set(words.values()) == set(formulas.values()) == set(HABITS)
    assert sum(HABITS) == 1.0


def test_a_demonstration_keeps_its_habit(made: tuple[Any, Demonstrations]) -> None:
    tokenizer, data = made
    named: dict[float, list[bool]] = {share: [] for share in HABITS}
    for prompt, said in turns(tokenizer, data):
        if "Tool Name: " in said and "calculator" not in said:
            question = prompt.split("Question\n")[1].split("\n")[0]
            tool = said.rpartition("Tool Name: ")[2]
            named[habit(question)].append(tool.startswith("python_coder"))
    low, high = (sum(found) / len(found) for found in named.values())
    assert min(map(len, named.values())) > 15 and low < 0.5 < high


def test_the_analysis_never_names_a_tool_and_tells_families_apart() -> None:
    problems = make_problems("train", per_cell=5, seed=1)
    said = {(problem.family, problem.level): analysis(problem.text) for problem in problems}
    assert not any(word in text for text in said.values() for word in ("coder", "generator"))
    assert len({text.split(".")[0] for text in said.values()}) >= 10


@pytest.mark.parametrize("flaw", [None, *FLAWS])
def test_a_flaw_breaks_the_form_and_nothing_else_does(flaw: Any) -> None:
    async def read() -> NextStep | Malformed:
        async with laptop_method() as found:
            text = next_step("Compute 2 * 3 + 4.", "python_coder", flaw)
            return read_step(text, found.helpers.toolbox, found.helpers.prompts.labels)

    assert isinstance(asyncio.run(read()), NextStep if flaw is None else Malformed)


def test_a_loop_that_reads_a_turn_otherwise_is_a_bug(made: tuple[Any, Demonstrations]) -> None:
    tokenizer, _ = made
    problem = next(demonstrated(1, 1))

    async def misread() -> None:
        async with laptop_method(prompt="full") as found:
            profile = tokendelta.Profile.from_tokenizer(tokenizer)
            await play(problem, found, tokenizer, profile, seed=1, flaw_share=0.0)

    with pytest.raises(RuntimeError, match=problem.id):
        asyncio.run(misread())


@pytest.mark.parametrize("text", ["", "héé 日本 \n\n\t x", "a_b(c): d\na_b(c): d", "\ud7ff\u2028"])
def test_any_text_comes_back(made: tuple[Any, Demonstrations], text: str) -> None:
    tokenizer, _ = made
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_every_digit_is_a_token_and_a_tools_name_is_one(made: tuple[Any, Demonstrations]) -> None:
    tokenizer, _ = made
    assert len(tokenizer.encode("4837", add_special_tokens=False)) == 4
    for name in ("python_coder", "base_generator"):
        whole = tokenizer.encode(f"Tool Name: {name}", add_special_tokens=False)
        assert tokenizer.decode(whole[-1:]).strip() == name


def test_a_vocabulary_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="300"):
        train_tokenizer(["a"], vocab_size=200)


def test_a_pass_over_the_data_meets_every_turn_once(made: tuple[Any, Demonstrations]) -> None:
    _, data = made
    batches, seen = replay_batches(0, data, 2_048, pool=POOL), 0
    while seen < len(data):
        ids, trained = next(batches)
        assert ids.size <= 2_048 and ids.shape == trained.shape
        seen += len(ids)
    assert seen == len(data)


def test_training_learns_the_planners_words(made: tuple[Any, Demonstrations]) -> None:
    torch.set_num_threads(1)
    tokenizer, data = made
    model = build_model(tokenizer, hidden_size=64, layers=1, seed=0)
    schedule = Schedule(steps=60, learning_rate=1e-2, seed=0)
    assert schedule.rate(0) < schedule.rate(3) > schedule.rate(59) > 0
    lines: list[str] = []
    assert train(model, schedule, data, batch_tokens=2_048, log=lines.append) > 0.6
    assert len(lines) == 3


TINY: dict[str, Any] = {
    "dialogues": 21, "steps": 2, "batch_tokens": 512, "hidden_size": 64, "layers": 1,
}  # fmt: skip


def test_the_same_settings_give_the_same_planner(tmp_path: Path) -> None:
    def digest(folder: Path) -> str:
        return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()

    warmstart(WarmstartConfig(out=tmp_path / "a", **TINY))
    warmstart(WarmstartConfig(out=tmp_path / "b", **TINY))
    warmstart(WarmstartConfig(out=tmp_path / "c", **{**TINY, "seed": 2}))
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    settings = json.loads((tmp_path / "a" / "warmstart.json").read_text())["settings"]
    assert settings["dialogues"] == 21 and "out" not in settings


def test_a_folder_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        main(["--out", str(tmp_path)])
