"""The readers with lapses whose turns the shipped policy learns."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokendelta
import torch
from numpy.typing import NDArray
from turnwise.config import ConfigError
from turnwise.engine import Completion, SamplingParams
from turnwise.local.demonstrations import Demonstrations
from turnwise.policy import Policy
from turnwise.rollout import Rollout

from apps.trainers.memagent.laptop.demonstrations import Lapses, demonstrated, read, record
from apps.trainers.memagent.laptop.warmstart import (
    WarmstartConfig,
    laptop_method,
    make_tokenizer,
    warmstart,
)
from apps.trainers.memagent.prompts import make_prompts
from apps.trainers.memagent.task import Task
from apps.trainers.memagent.template import Template

COUNT = 60
NEVER = Lapses(overlook=0.0, forget=0.0, discard=1.0, clutter=0.0)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(laptop_method(), 1)


def made(tokenizer: Any, lapses: Lapses, indices: range = range(COUNT)) -> Demonstrations:
    template = Template(
        tokendelta.Profile.from_tokenizer(tokenizer), make_prompts("compact", "problem-first")
    )
    return record(template, tokenizer.eos_token_id, seed=2, indices=indices, lapses=lapses)


def rows(data: Demonstrations) -> list[tuple[NDArray[np.uint16], NDArray[np.bool_]]]:
    spans = zip(data.offsets[:-1], data.offsets[1:], strict=True)
    return [(data.ids[start:stop], data.trained[start:stop]) for start, stop in spans]


class Saying:
    """Says given replies. Keeps the engine's contract."""

    def __init__(self, replies: list[NDArray[np.uint16]]) -> None:
        self._replies = replies

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        ids = self._replies.pop(0).astype(np.int32)
        return Completion(ids, np.zeros(len(ids), dtype=np.float32), "stop")

    async def release(self, session_id: str) -> None:
        return None

    async def close(self) -> None:
        return None


def test_a_row_is_what_the_episode_loop_makes_of_the_same_reply(tokenizer: Any) -> None:
    method = laptop_method()
    profile = tokendelta.Profile.from_tokenizer(tokenizer)
    for index, story in zip(range(8), demonstrated(2, range(8)), strict=True):
        expected = rows(made(tokenizer, Lapses(), range(index, index + 1)))
        engine = Saying([ids[trained] for ids, trained in expected])
        policy = Policy(engine=engine, profile=profile, max_context_tokens=96)
        task = Task(story.question, story.text, (story.answer,), story.id)
        rollout = Rollout(task, story.id, rollout_id=story.id, group_id=story.id, seed=0)
        episode = asyncio.run(method.run(rollout, policy))
        assert episode.ending.label == "finished" and len(episode.segments) == len(expected)
        for segment, (ids, trained) in zip(episode.segments, expected, strict=True):
            assert np.array_equal(segment.ids, ids)
            assert trained.sum() == segment.loss_mask.sum()


def test_a_reader_without_lapses_answers_all_that_can_be_read_in_order() -> None:
    for index, story in enumerate(demonstrated(2, range(COUNT))):
        *updates, last = read(story, random.Random(index), NEVER)
        assert not any(turn.flawed for turn in updates)
        if story.kind == "both" or story.gold[0] < story.gold[1]:
            assert last.said == story.answer and not last.flawed


def test_lapses_leave_turns_that_are_wrong_and_counted(tokenizer: Any) -> None:
    assert not made(tokenizer, NEVER).flawed.mean() > 0.05
    assert 0.2 < made(tokenizer, Lapses()).flawed.mean() < 0.6


def test_only_what_a_reader_said_is_learnt(tokenizer: Any) -> None:
    for ids, trained in rows(made(tokenizer, Lapses())):
        assert trained[-1] and not np.diff(trained.astype(int)).min() < 0
        assert tokenizer.decode(ids[~trained]).endswith("<|im_start|>assistant\n")


def test_demonstrations_are_the_same_in_parts(tokenizer: Any) -> None:
    whole = made(tokenizer, Lapses())
    parts = [made(tokenizer, Lapses(), range(at, at + 20)) for at in range(0, COUNT, 20)]
    assert np.array_equal(whole.ids, np.concatenate([part.ids for part in parts]))
    assert not np.array_equal(parts[0].ids[:200], parts[1].ids[:200])


def test_the_recipe_makes_a_policy_and_writes_over_none(tmp_path: Path) -> None:
    small = WarmstartConfig(
        out=tmp_path / "policy",
        device="cpu",
        dialogues=20,
        short_dialogues=20,
        copy_steps=1,
        copy_rows=8,
        short_steps=1,
        steps=2,
        hidden_size=64,
        layers=1,
        batch_tokens=1_024,
        threads=torch.get_num_threads(),
    )
    assert warmstart(small)["turns"] > 80
    assert (tmp_path / "policy" / "warmstart.json").is_file()
    with pytest.raises(ConfigError, match="exists"):
        warmstart(small)
