"""The loop: what is read, remembered, answered, scored and trained."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from turnwise.config import ConfigError
from turnwise.group import credit_advantages
from turnwise.testing import (
    ScriptedEngine,
    byte_policy,
    byte_profile,
    decode,
    encode,
    fail,
    reply,
    say,
)

from apps.trainers.memagent.options import MemAgentOptions
from apps.trainers.memagent.prompts import make_prompts
from apps.trainers.memagent.reader import Source
from apps.trainers.memagent.sections import Ids
from apps.trainers.memagent.template import Template
from apps.trainers.memagent.tests.reading import (
    ANSWER,
    PROBLEM,
    TEXT,
    below,
    method,
    prompts,
    read,
    task,
)


async def test_every_section_is_shown_with_the_memory_that_was_written_before() -> None:
    episode, engine = await read("one", "two", "three", ANSWER)
    *updates, final = prompts(engine)
    assert "".join(below("section", prompt) for prompt in updates) == TEXT
    assert [below("notes", prompt) for prompt in updates[1:]] == ["one", "two"]
    assert below("notes", final) == "three" and "<section>" not in final
    assert all(below("problem", prompt) == PROBLEM for prompt in (*updates, final))
    assert episode.ending.label == "finished" and episode.score == 1.0


async def test_sampled_ids_stand_in_the_next_prompt_verbatim() -> None:
    half = encode("де")[:3]
    episode, engine = await read(
        reply([*half, byte_stop()]), reply([*half, byte_stop()]), "x", ANSWER
    )
    shown = engine.calls[1].prompt_ids.tolist()
    at = len(encode(decode(shown).partition("<notes>\n")[0] + "<notes>\n"))
    assert shown[at : at + 3] == half
    assert episode.metrics["memory_unchanged"] == 1


def byte_stop() -> int:
    return encode("<|im_end|>")[0]


async def test_every_turn_is_a_segment_that_is_trained_the_last_one_too() -> None:
    episode, engine = await read("one", "two", "three", ANSWER)
    assert len(episode.segments) == 4
    for segment, made, said in zip(
        episode.segments, engine.calls, ("one", "two", "three", ANSWER), strict=True
    ):
        assert np.array_equal(segment.ids[: segment.prompt_length], made.prompt_ids)
        assert decode(segment.ids[segment.prompt_length :]) == f"{said}<|im_end|>"
        assert segment.loss_mask.all()


async def test_memory_and_answer_have_their_own_limits() -> None:
    _, engine = await read("one", "two", "three", ANSWER, max_memory_tokens=9, max_final_tokens=30)
    assert [call.params.max_new_tokens for call in engine.calls] == [9, 9, 9, 30]


async def test_a_memory_beyond_its_limit_is_cut_counted_and_used() -> None:
    episode, engine = await read("0123456789", "b", "c", ANSWER, max_memory_tokens=4)
    assert below("notes", prompts(engine)[1]) == "0123"
    assert episode.metrics["memory_cut"] == 1 and episode.score == 1.0


@pytest.mark.parametrize("rule", ["use", "previous", "penalty"])
async def test_an_empty_memory_keeps_the_one_before(rule: str) -> None:
    episode, engine = await read("one", "", "three", ANSWER, on_bad_memory=rule)
    assert below("notes", prompts(engine)[2]) == "one"
    assert episode.metrics["memory_empty"] == 1
    assert episode.score == (0.9 if rule == "penalty" else 1.0)


async def test_a_memory_that_repeats_itself_can_be_refused() -> None:
    loop = "again " * 20
    episode, engine = await read("one", loop, "three", ANSWER, on_bad_memory="previous")
    assert below("notes", prompts(engine)[2]) == "one"
    assert episode.metrics["memory_repeats"] == 1


async def test_a_bad_memory_can_end_the_episode_without_reward() -> None:
    episode, engine = await read("one", "", "three", ANSWER, on_bad_memory="stop")
    assert episode.ending.label == "stopped:format" and episode.score == 0.0
    assert len(engine.calls) == 2


async def test_long_memories_have_their_price_but_a_wrong_answer_costs_no_more() -> None:
    options: dict[str, Any] = {"memory_price": 0.5, "max_memory_tokens": 8}
    right, _ = await read("abc", "abc", "abc", ANSWER, **options)
    assert right.score == pytest.approx(1 - 0.5 * 4 / 8)
    wrong, _ = await read("abc", "abc", "abc", r"\boxed{x}", **options)
    assert wrong.score == 0.0


async def test_a_text_of_too_many_sections_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"rows.jsonl:1: .* raise --memagent.max-chunks"):
        await read("one", max_chunks=2)


async def test_a_text_that_is_cut_where_asked_counts_what_is_lost() -> None:
    episode, engine = await read("one", "two", ANSWER, max_chunks=2, on_overlong="centre")
    shown = "".join(below("section", prompt) for prompt in prompts(engine)[:-1])
    assert shown == TEXT[:12] + TEXT[-12:]
    assert episode.metrics["lost_tokens"] == len(TEXT) - 24
    assert episode.metrics["sections"] == 2


async def test_a_text_that_is_made_while_it_is_read_is_read_alike() -> None:
    def blocks() -> list[str]:
        return [TEXT[:5], TEXT[5:20], TEXT[20:]]

    whole, one = await read("one", "two", "three", ANSWER)
    pieces, other = await read("one", "two", "three", ANSWER, one=task(blocks))
    assert prompts(one) == prompts(other) and whole.score == pieces.score
    with pytest.raises(ConfigError, match="more than 2 sections"):
        await read("one", "two", one=task(blocks), max_chunks=2)
    cut, _ = await read("one", "two", ANSWER, one=task(blocks), max_chunks=2, on_overlong="tail")
    assert cut.metrics["lost_tokens"] == len(TEXT) - 24


async def test_an_answer_cut_at_its_limit_is_no_finished_episode_but_is_read() -> None:
    episode, _ = await read("one", "two", "three", ANSWER + " And more", max_final_tokens=22)
    assert episode.ending.label == "stopped:tokens" and episode.score == 1.0


async def test_an_answer_outside_of_the_box_is_wrong() -> None:
    episode, _ = await read("one", "two", "three", "third")
    assert episode.score == 0.0
    whole, _ = await read("one", "two", "three", "third", answer="whole")
    assert whole.score == 1.0


async def test_the_failure_of_an_engine_earns_no_reward() -> None:
    episode, _ = await read("one", fail("gone"))
    assert episode.ending.label == "lost:engine" and episode.score is None
    assert len(episode.segments) == 1


async def test_a_turn_that_is_given_back_cancels_the_episode() -> None:
    aborted = reply([1], finish="abort")
    for turns in ([say("one"), aborted], [say("a"), say("b"), say("c"), aborted]):
        episode, _ = await read(*turns)
        assert episode.ending.label == "cancelled" and episode.score is None


async def test_no_room_in_the_context_ends_the_episode() -> None:
    episode, engine = await read("one", context=50)
    assert episode.ending.label == "stopped:context" and episode.score == 0.0
    assert not engine.calls


async def test_the_text_of_a_group_is_encoded_once() -> None:
    encoded: list[str] = []

    class Counting(Template):
        def encode(self, text: str) -> Ids:
            encoded.append(text)
            return super().encode(text)

    template = Counting(byte_profile(), make_prompts("full", "problem-first"))
    source = Source(template, MemAgentOptions(chunk_tokens=12))
    opened = await asyncio.gather(*(source.open(task()) for _ in range(16)))
    assert encoded.count(TEXT) == 1
    for sections, _ in opened:
        assert decode(np.concatenate([section async for section in sections])) == TEXT


async def test_what_is_kept_of_the_answer_is_told() -> None:
    kept, _ = await read("one", "two", "the third one", ANSWER)
    gone, _ = await read("the third", "two", "thirds", ANSWER)
    assert (kept.metrics["answer_kept"], gone.metrics["answer_kept"]) == (1.0, 0.0)


async def test_a_turn_earns_what_its_memory_holds_more_of_the_facts() -> None:
    one = replace(task(), facts=("the first part.", "a second"))
    turns = ("The first part", "first part, a second", "a second", ANSWER)
    episode, _ = await read(*turns, one=one, step_credit=0.5)
    assert episode.credit == (0.25, 0.25, -0.25, None) and episode.score == 1.0
    forgot, _ = await read("the first part", "a second", "nothing", ANSWER, one=one, step_credit=1)
    assert forgot.credit == (0.5, 0.0, -0.5, None)
    answers, _ = await read("a", "the third", "", ANSWER, step_credit=1.0)
    assert answers.credit == (0.0, 1.0, 0.0, None)
    off, _ = await read(*turns, one=one)
    assert off.credit == () and "credit" not in off.info


async def test_a_turn_that_was_lost_has_no_credit() -> None:
    episode, _ = await read("the third", fail("gone"), step_credit=1.0)
    assert episode.score is None and episode.credit == ()


async def test_earlier_sections_that_the_memory_speaks_of_are_read_once_more() -> None:
    text = "alpha=beta. gamma-delta epsilon-zeta"
    one = task(text, problem="Where is gamma?")
    turns = ("zeta", "zeta", "other", "beta", "beta", ANSWER)
    episode, engine = await read(*turns, one=one, callbacks=2)
    *updates, final = prompts(engine)
    shown = [below("section", prompt) for prompt in updates]
    assert "".join(shown[:3]) == text
    assert shown[3:] == [text[12:24], text[:12]]
    assert below("notes", updates[4]) == "beta" == below("notes", final)
    assert (episode.metrics["callbacks"], episode.metrics["sections"]) == (2, 3)
    assert len(episode.segments) == 6


async def test_an_answer_is_not_compared_with_what_others_read_again() -> None:
    one = replace(task("alpha=beta. gamma-delta"), facts=("beta",))
    found, _ = await read("x", "alpha", "beta", ANSWER, one=one, callbacks=1, step_credit=1.0)
    none, _ = await read("x", "mu", ANSWER, one=one, callbacks=1, step_credit=1.0)
    assert (found.credit, none.credit) == ((0.0, 0.0, 1.0, None), (0.0, 0.0, None))
    for credit in credit_advantages([found.credit, none.credit]):
        assert credit.tolist() == [0.0] * len(credit)


async def test_nothing_is_read_again_that_no_word_leads_to() -> None:
    for text in ("alpha beta gamma delta", "... ... ... ... ..."):
        episode, engine = await read("mu", "mu", ANSWER, one=task(text), callbacks=3)
        assert len(engine.calls) == 3 and episode.metrics["callbacks"] == 0


def test_the_first_prompt_is_counted_with_a_whole_section_and_memory() -> None:
    one = method(max_memory_tokens=100)
    policy = byte_policy(ScriptedEngine([]))
    shown = one.prompt_tokens([task()], policy.profile)
    reader = one._tokens(policy.profile)
    short = reader.template.update(
        reader.template.encode(PROBLEM), reader.nothing[:0], reader.nothing[:0]
    )
    assert shown == len(short) + 12 + 100
