from __future__ import annotations

from pathlib import Path

import pytest
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError
from turnwise.models import Answer

from apps.trainers.toolorchestra.experts import AnswerCache, Breaker, BreakerOpen, Experts
from apps.trainers.toolorchestra.options import BreakerOptions
from apps.trainers.toolorchestra.tests.orchestra import Cast, Model, play, use

GONE = BoundaryError(Boundary.ENGINE, "connection refused")
OPTIONS = BreakerOptions(failures=2, pause_s=30)
ASKED = [{"role": "user", "content": "6 x 7?"}]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Expert:
    """Fails while told to."""

    fails = True
    asked = 0

    async def __call__(self) -> Answer:
        self.asked += 1
        if self.fails:
            raise GONE
        return Answer("42")


async def test_an_expert_that_keeps_failing_is_left_alone_and_tried_again() -> None:
    clock, expert = Clock(), Expert()
    breaker = Breaker("large", OPTIONS, clock)
    for _ in range(2):
        with pytest.raises(BoundaryError, match="connection refused"):
            await breaker.run(expert)
    with pytest.raises(BreakerOpen, match="large: not asked .* 2 failures in a row.*refused"):
        await breaker.run(expert)
    assert expert.asked == 2 and breaker.opened == 1
    clock.now, expert.fails = 31.0, False
    assert (await breaker.run(expert)).text == "42"
    assert (await breaker.run(expert)).text == "42"


async def test_one_question_tries_an_open_breaker_and_the_others_wait() -> None:
    clock, expert = Clock(), Expert()
    breaker = Breaker("large", OPTIONS, clock)
    for _ in range(2):
        with pytest.raises(BoundaryError):
            await breaker.run(expert)
    clock.now = 31.0

    async def probe() -> Answer:
        with pytest.raises(BreakerOpen):
            await breaker.run(expert)
        return Answer("42")

    assert (await breaker.run(probe)).text == "42"
    assert expert.asked == 2


async def test_an_answer_in_between_closes_the_count() -> None:
    expert = Expert()
    breaker = Breaker("large", OPTIONS, Clock())
    for fails in (True, False, True, False, True):
        expert.fails = fails
        try:
            await breaker.run(expert)
        except BreakerOpen:
            pytest.fail("it was open")
        except BoundaryError:
            pass


async def test_an_open_breaker_holds_for_its_expert_alone_and_loses_the_episode() -> None:
    cast = Cast(large=Model("large", [GONE]), small=Model("small", ["\\boxed{42}"]))
    from apps.trainers.toolorchestra.tests.orchestra import OPTIONS as RUN

    served = cast.served(RUN.model_copy(update={"breaker": BreakerOptions(failures=1)}))
    first = await play(use("answer", "answer-2"), served=served)
    second = await play(use("answer", "answer-2"), served=served)
    other = await play(use("answer", "answer-1"), served=served)
    assert [one.ending.label for one in (first, second, other)] == [
        "lost:engine", "lost:engine", "finished",
    ]  # fmt: skip
    assert "not asked" in str(second.ending.error) and len(cast.large.prompts) == 1


async def test_a_cached_answer_is_given_again_across_processes_and_costs_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "answers.jsonl"
    model = Model("large", ["first", "second"])
    experts = Experts({"large": model}, OPTIONS, AnswerCache(path))
    first = await experts.ask("large", ASKED, seed=1)
    again = Experts({"large": Model("large", ["third"])}, OPTIONS, AnswerCache(path))
    second = await again.ask("large", ASKED, seed=2)
    assert (first[0], first[1], second[1]) == (second[0], False, True)
    assert second[0] == Answer("first", 100, 20)
    assert again.metrics()["expert/cache_hits"] == 1


async def test_another_model_or_setting_has_answers_of_its_own(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "answers.jsonl")
    for identity in ("m at 0.7", "m at 1"):
        experts = Experts(
            {"large": Model("large", [identity])}, OPTIONS, cache, {"large": identity}
        )
        assert (await experts.ask("large", ASKED, seed=1))[0].text == identity


async def test_a_failure_is_not_cached(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    experts = Experts({"large": Model("large", [GONE, "42"])}, OPTIONS, AnswerCache(path))
    with pytest.raises(BoundaryError):
        await experts.ask("large", ASKED, seed=1)
    assert (await experts.ask("large", ASKED, seed=1))[0].text == "42"


def test_another_file_is_no_cache(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(
        '{"key": "a", "text": "b", "read": 1, "written": 1, "finish": "stop"}\n{"x": 1}\n'
    )
    with pytest.raises(ConfigError, match="answers.jsonl:2: not a recorded answer"):
        AnswerCache(path)


async def test_without_a_cache_equal_questions_are_asked_again() -> None:
    model = Model("large", ["first", "second"])
    experts = Experts({"large": model}, OPTIONS)
    await experts.ask("large", ASKED, seed=1)
    assert (await experts.ask("large", ASKED, seed=1))[0].text == "second"
