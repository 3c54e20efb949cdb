"""Defects of the public code that came before, each as a claim that would fail on it.

Not here: what the prompts of the judge, the retrieval service, the launch and the data hold, which
is tested beside them: `test_prepare` (negative weights, overlap by task id), `test_tables` (roles
that do not exist), `test_reward` (calls that are paid for, normalisation), `tests_launch` (parsers
of native calls, ports).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from turnwise.episode import Boundary, BoundaryError
from turnwise.retrieval import Document
from turnwise.testing import ScriptedEngine, decode, say

from apps.trainers.toolorchestra.options import BreakerOptions
from apps.trainers.toolorchestra.tests.orchestra import (
    OPTIONS,
    QUERY,
    TASK,
    Cast,
    Judge,
    Model,
    Search,
    play,
    use,
)

FOLDER = Path(__file__).parents[1]
ANSWER_2 = use("answer", "answer-2")
GONE = BoundaryError(Boundary.ENGINE, "Error: connection refused")


def sources() -> list[Path]:
    return [path for path in FOLDER.glob("*.py")]


def modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


async def test_an_expert_s_cost_is_of_its_own_tokens_and_not_of_the_policy_s() -> None:
    short, long = await play(ANSWER_2), await play("so, " * 200 + ANSWER_2)
    for name in ("read_tokens", "written_tokens", "usd"):
        assert short.metrics[f"expert/large/{name}"] == long.metrics[f"expert/large/{name}"] > 0
    assert long.metrics["sampled_tokens"] > short.metrics["sampled_tokens"] + 500
    priced = {"policy_read_price": 1.0, "policy_write_price": 100.0}
    dear = await play("so, " * 200 + ANSWER_2, **priced)
    assert dear.metrics["policy_usd"] > 0.08 and dear.metrics["expert_usd"] == pytest.approx(0.0018)


async def test_a_policy_without_a_price_costs_what_the_row_s_cheapest_expert_does() -> None:
    episode = await play(ANSWER_2, policy_read_price=None, policy_write_price=None)
    read, written = episode.metrics["prompt_tokens"], episode.metrics["sampled_tokens"]
    assert episode.metrics["policy_usd"] == pytest.approx((read * 1 + written * 2) / 1e6)


async def test_a_document_with_the_truth_makes_no_episode_right() -> None:
    cast = Cast(
        small=Model("small", [QUERY]), search=Search([Document("", "The answer is 42.", "d")])
    )
    episode = await play(*[use("search", "search-1")] * 2, cast=cast, max_turns=2)
    assert episode.metrics["correct"] == 0 and cast.judge.asked == []


async def test_the_judge_sees_the_question_of_the_row_and_nothing_of_the_prompt() -> None:
    cast = Cast()
    await play(ANSWER_2, cast=cast)
    assert [asked[0] for asked in cast.judge.asked] == [TASK.question]


@pytest.mark.parametrize(
    ("tool", "role"),
    [("search", "search-1"), ("enhance_reasoning", "reasoner-1"), ("answer", "answer-1")],
)
async def test_the_breaker_opens_whatever_tool_the_expert_fails_in(tool: str, role: str) -> None:
    cast = Cast(small=Model("small", [GONE]))
    options = OPTIONS.model_copy(update={"breaker": BreakerOptions(failures=2)})
    served = cast.served(options)
    episodes = [await play(use(tool, role), served=served) for _ in range(4)]
    assert {episode.ending.label for episode in episodes} == {"lost:engine"}
    assert len(cast.small.prompts) == 2
    assert cast.search.queries == [] and cast.judge.asked == []


async def test_a_slow_episode_is_lost_and_not_wrong() -> None:
    episode = await play(ANSWER_2, cast=Cast(large=Model("large", [60.0])), wall_s=0.05)
    assert episode.score is None and not episode.ending.by_policy


async def test_every_prompt_begins_with_all_that_was_sampled_before() -> None:
    cast = Cast(small=Model("small", [QUERY]), search=Search([Document("", "river", "d")]))
    thought = "<think>It needs a look.</think>\n" + use("search", "search-1")
    engine = ScriptedEngine([say(thought), say(thought), say(ANSWER_2)])
    episode = await play(cast=cast, engine=engine)
    prompts = [decode(call.prompt_ids) for call in engine.calls]
    for before, after in zip(prompts, prompts[1:], strict=False):
        assert after.startswith(before + thought)
    assert len(episode.segments) == 1


async def test_an_empty_answer_is_wrong() -> None:
    cast = Cast(large=Model("large", ["<think>It is 42."]), judge=Judge())
    episode = await play(ANSWER_2, cast=cast)
    assert cast.judge.asked[0][1] == "" and episode.metrics["correct"] == 0


async def test_a_failure_s_words_are_in_no_later_prompt() -> None:
    cast = Cast(search=Search(GONE), small=Model("small", [QUERY]))
    engine = ScriptedEngine([say(use("search", "search-1")), say(ANSWER_2)])
    episode = await play(cast=cast, engine=engine)
    assert len(engine.calls) == 1 and episode.ending.label == "lost:engine"


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_no_episode_polls_starts_processes_or_leaves_folders(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not modules(path) & {"subprocess", "tempfile", "shutil", "requests", "threading"}
    assert "time.sleep" not in text and "exec(" not in text


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_no_address_stands_in_the_code(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if "127.0.0.1" in line or "localhost" in line]
