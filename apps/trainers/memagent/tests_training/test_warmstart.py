"""The readers with lapses whose turns the shipped policy learns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokendelta
import torch
from turnwise.config import ConfigError
from turnwise.local.demonstrations import Demonstrations

from apps.trainers.memagent.laptop.demonstrations import Lapses, demonstrated, record
from apps.trainers.memagent.laptop.warmstart import (
    WarmstartConfig,
    laptop_method,
    make_tokenizer,
    warmstart,
)

COUNT = 60
NEVER = Lapses(overlook=0.0, forget=0.0, discard=1.0, clutter=0.0)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(laptop_method(), 1)


def made(tokenizer: Any, lapses: Lapses, seed: int = 2) -> Demonstrations:
    profile = tokendelta.Profile.from_tokenizer(tokenizer)
    method = laptop_method()
    return asyncio.run(
        record(method, tokenizer, profile, seed=seed, count=COUNT, lapses=lapses, most=3)
    )


def said(tokenizer: Any, data: Demonstrations) -> list[str]:
    spans = zip(data.offsets[:-1], data.offsets[1:], strict=True)
    return [
        str(tokenizer.decode(data.ids[start:stop][data.trained[start:stop]]))
        for start, stop in spans
    ]


def test_a_reader_without_lapses_answers_all_that_can_be_read_in_order(tokenizer: Any) -> None:
    data = made(tokenizer, NEVER)
    assert not data.flawed.any()
    answers = [text for text in said(tokenizer, data) if not text.startswith(("The ", "none"))]
    in_order = [one for one in demonstrated(2, COUNT)]
    right = [
        answer.removesuffix("<|im_end|>") == story.answer
        for answer, story in zip(answers, in_order, strict=True)
        if story.kind == "both" or story.gold[0] < story.gold[1]
    ]
    assert len(right) > COUNT / 2 and all(right)


def test_lapses_leave_turns_that_are_wrong_and_counted(tokenizer: Any) -> None:
    data = made(tokenizer, Lapses())
    assert 0.2 < data.flawed.mean() < 0.6


def test_only_what_a_reader_said_is_learnt(tokenizer: Any) -> None:
    data = made(tokenizer, Lapses())
    for start, stop in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        trained = data.trained[start:stop]
        assert trained[-1] and not np.diff(trained.astype(int)).min() < 0
        assert "<|im_start|>assistant\n" in tokenizer.decode(data.ids[start:stop][~trained])


def test_the_same_seed_gives_the_same_demonstrations(tokenizer: Any) -> None:
    one, other = made(tokenizer, Lapses()), made(tokenizer, Lapses())
    assert np.array_equal(one.ids, other.ids)
    assert not np.array_equal(one.ids, made(tokenizer, Lapses(), seed=3).ids)


def test_the_recipe_makes_a_policy_and_writes_over_none(tmp_path: Path) -> None:
    small = WarmstartConfig(
        out=tmp_path / "policy",
        dialogues=20,
        copy_steps=1,
        steps=2,
        hidden_size=64,
        layers=1,
        batch_tokens=1_024,
        threads=torch.get_num_threads(),
    )
    assert warmstart(small)["turns"] > 40
    assert (tmp_path / "policy" / "warmstart.json").is_file()
    with pytest.raises(ConfigError, match="exists"):
        warmstart(small)
