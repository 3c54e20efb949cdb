"""What goes wrong in the published code, each as a test that would fail on it.

Numbers are those of the survey of slime-agentic's MemAgent. Those that are not below are tested
where the part is:

| defect                                         | its test                                      |
|------------------------------------------------|-----------------------------------------------|
| M1 an empty prediction counts as right         | ruler_hqa: test_scoring, "says nothing"       |
| M2 a failed request leaves the denominator     | turnwise: tests/evaluation, coverage, bounds  |
| M3 F1 of yes and no                            | ruler_hqa: test_scoring, "match nothing but"  |
| M4 the best of five, chosen on the test set    | ruler_hqa: test_run, "costs and places"; M17  |
| M7 sections beyond the limit are lost silently | test_episode, "too many sections", "is cut"   |
| M13, M15 paths of a script and of sys.path     | no script; tests/test_import_direction        |
| M14 YaRN is claimed and not set                | test_presets, "own positions"                 |
| M16 only equal strings are right               | test_task, "articles and punctuation"         |
| M17 no evaluation in training, no dev file     | test_presets, "no test"; test_prepare, M17    |
| M18 the longest text decides the step's time   | test_task, "more work"; turnwise test_rollout |
| M19 no builder of contexts, no filter          | test_prepare: places, lengths, what is known  |
| M20 no step credit, price, callback, lengths   | test_episode, each; test_world, lengths       |
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from turnwise.engine import SamplingParams
from turnwise.method import play
from turnwise.testing import ScriptedEngine, byte_policy, decode, encode, reply, say

from apps.trainers.memagent.method import METHOD
from apps.trainers.memagent.options import MemAgentOptions
from apps.trainers.memagent.tests.reading import ANSWER, method, read, rollout, task

TURNS = ("one", "two", "three", ANSWER)


async def test_m5_training_and_evaluation_show_the_same_ids() -> None:
    shown = []
    for sampling in (SamplingParams(), SamplingParams(temperature=0.0, max_new_tokens=1_500)):
        engine = ScriptedEngine([say(turn) for turn in TURNS])
        policy = replace(byte_policy(engine), sampling=sampling)
        await play(method(), rollout(), policy)
        shown.append([call.prompt_ids.tolist() for call in engine.calls])
    assert shown[0] == shown[1]


def test_m6_a_plain_start_reads_sections_of_the_papers_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MEM_CHUNK_TOKENS", "2048")
    assert MemAgentOptions().chunk_tokens == METHOD.Options().chunk_tokens == 5_000


async def test_m8_a_section_that_breaks_a_character_is_shown_as_the_ids_that_it_is() -> None:
    text = "\u65e5\u672c\u8a9e"
    engine = ScriptedEngine([say("one"), say("two"), say(ANSWER)])
    policy = byte_policy(engine)
    await play(method(chunk_tokens=5), rollout(task(text)), policy)
    shown = [call.prompt_ids.tolist() for call in engine.calls[:2]]
    ids = encode(text)
    for section, prompt in zip((ids[:5], ids[5:]), shown, strict=True):
        assert any(prompt[at : at + len(section)] == section for at in range(len(prompt)))


async def test_m9_a_looping_memory_is_counted_however_it_ended() -> None:
    stopped, _ = await read("la " * 40, *TURNS[1:])
    cut, _ = await read("la " * 40, *TURNS[1:], max_memory_tokens=64)
    assert stopped.metrics["memory_repeats"] == cut.metrics["memory_repeats"] == 1


async def test_m10_each_prompt_is_in_the_training_rows_once() -> None:
    episode, engine = await read(*TURNS)
    total = sum(len(segment.ids) for segment in episode.segments)
    sampled = sum(len(segment.loss_mask) for segment in episode.segments)
    assert total == sum(len(call.prompt_ids) for call in engine.calls) + sampled


async def test_m11_a_turn_without_a_token_makes_no_training_row() -> None:
    episode, _ = await read("one", reply([], finish="abort"))
    assert episode.score is None
    assert all(segment.loss_mask.any() for segment in episode.segments)


def test_m12_the_loss_is_the_mean_over_all_tokens_unless_asked_otherwise() -> None:
    assert MemAgentOptions().objective == "global-token-mean"


async def test_m20_every_turn_of_the_trace_says_what_was_read_and_written() -> None:
    episode, _ = await read(*TURNS)
    authors = [message["author"] for message in episode.transcript]
    assert authors == ["prompt", "policy"] * 4
    for message in episode.transcript:
        start, stop = message["span"]
        ids = episode.segments[message["segment"]].ids[start:stop]
        assert message["content"] in decode(np.asarray(ids))
