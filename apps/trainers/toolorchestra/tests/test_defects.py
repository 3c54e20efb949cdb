"""Defects of the public code that came before, each as a claim that would fail on it.

Names begin with the defect's number; README.md beside this file has all of them, with the tests
that stand elsewhere.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from taubench.tau2.users import UserConfig
from turnwise.episode import Boundary, BoundaryError
from turnwise.method import Services
from turnwise.models import ModelConfig, make_models
from turnwise.retrieval import Document
from turnwise.testing import ScriptedEngine, decode, say
from turnwise.testing.servers import Call, FakeChat, status

from apps.trainers.toolorchestra.customers import Customers
from apps.trainers.toolorchestra.episode import Served
from apps.trainers.toolorchestra.experts import Experts
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
from apps.trainers.toolorchestra.tools import Tools

FOLDER = Path(__file__).parents[1]
ANSWER_2 = use("answer", "answer-2")
GONE = BoundaryError(Boundary.ENGINE, "Error: connection refused")


def sources() -> list[Path]:
    return [path for path in FOLDER.glob("*.py")]


def presets() -> list[Path]:
    return [path for path in (FOLDER / "presets").iterdir() if path.suffix in (".toml", ".yaml")]


def modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


async def test_t3_an_expert_s_cost_is_of_its_own_tokens_and_not_of_the_policy_s() -> None:
    short, long = await play(ANSWER_2), await play("so, " * 200 + ANSWER_2)
    for name in ("read_tokens", "written_tokens", "usd"):
        assert short.metrics[f"expert/large/{name}"] == long.metrics[f"expert/large/{name}"] > 0
    assert long.metrics["sampled_tokens"] > short.metrics["sampled_tokens"] + 500
    priced: Any = {"policy_read_price": 1.0, "policy_write_price": 100.0}
    dear = await play("so, " * 200 + ANSWER_2, **priced)
    assert dear.metrics["policy_usd"] > 0.08 and dear.metrics["expert_usd"] == pytest.approx(0.0018)


async def test_t3_a_policy_without_a_price_costs_what_the_row_s_cheapest_expert_does() -> None:
    episode = await play(ANSWER_2, policy_read_price=None, policy_write_price=None)
    read, written = episode.metrics["prompt_tokens"], episode.metrics["sampled_tokens"]
    assert episode.metrics["policy_usd"] == pytest.approx((read * 1 + written * 2) / 1e6)


async def test_t4_a_document_with_the_truth_makes_no_episode_right() -> None:
    cast = Cast(
        small=Model("small", [QUERY]), search=Search([Document("", "The answer is 42.", "d")])
    )
    episode = await play(*[use("search", "search-1")] * 2, cast=cast, max_turns=2)
    assert episode.metrics["correct"] == 0 and cast.judge.asked == []


async def test_t5_the_judge_sees_the_question_of_the_row_and_nothing_of_the_prompt() -> None:
    cast = Cast()
    await play(ANSWER_2, cast=cast)
    assert [asked[0] for asked in cast.judge.asked] == [TASK.question]


@pytest.mark.parametrize(
    ("tool", "role"),
    [("search", "search-1"), ("enhance_reasoning", "reasoner-1"), ("answer", "answer-1")],
)
async def test_t9_the_breaker_opens_whatever_tool_the_expert_fails_in(tool: str, role: str) -> None:
    cast = Cast(small=Model("small", [GONE]))
    options = OPTIONS.model_copy(update={"breaker": BreakerOptions(failures=2)})
    served = cast.served(options)
    episodes = [await play(use(tool, role), served=served) for _ in range(4)]
    assert {episode.ending.label for episode in episodes} == {"lost:engine"}
    assert len(cast.small.prompts) == 2
    assert cast.search.queries == [] and cast.judge.asked == []


async def test_t13_a_slow_episode_is_lost_and_not_wrong() -> None:
    episode = await play(ANSWER_2, cast=Cast(large=Model("large", [60.0])), wall_s=0.05)
    assert episode.score is None and not episode.ending.by_policy


async def test_t20_every_prompt_begins_with_all_that_was_sampled_before() -> None:
    cast = Cast(small=Model("small", [QUERY]), search=Search([Document("", "river", "d")]))
    thought = "<think>It needs a look.</think>\n" + use("search", "search-1")
    engine = ScriptedEngine([say(thought), say(thought), say(ANSWER_2)])
    episode = await play(cast=cast, engine=engine)
    prompts = [decode(call.prompt_ids) for call in engine.calls]
    for before, after in zip(prompts, prompts[1:], strict=False):
        assert after.startswith(before + thought)
    assert len(episode.segments) == 1


async def test_t4_an_empty_answer_is_wrong() -> None:
    cast = Cast(large=Model("large", ["<think>It is 42."]), judge=Judge())
    episode = await play(ANSWER_2, cast=cast)
    assert cast.judge.asked[0][1] == "" and episode.metrics["correct"] == 0


async def test_t30_a_failure_s_words_are_in_no_later_prompt() -> None:
    cast = Cast(search=Search(GONE), small=Model("small", [QUERY]))
    engine = ScriptedEngine([say(use("search", "search-1")), say(ANSWER_2)])
    episode = await play(cast=cast, engine=engine)
    assert len(engine.calls) == 1 and episode.ending.label == "lost:engine"


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_t11_t12_t14_t25_no_episode_polls_starts_processes_or_leaves_folders(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not modules(path) & {"subprocess", "tempfile", "shutil", "requests", "threading"}
    assert "time.sleep" not in text and "exec(" not in text
    assert not re.search(r"(?<!def )(?<![.\w])open\((?!\))|\.write_(text|bytes)\(", text)


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_t24_no_address_stands_in_the_code(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if "127.0.0.1" in line or "localhost" in line]


def expert_model(server: FakeChat, **changes: Any) -> ModelConfig:
    given = {"base_url": f"{server.url}/v1", "model": "m", "backoff_s": 0.001, **changes}
    return ModelConfig(**given)


async def answered(
    config: ModelConfig, environ: Mapping[str, str] | None = None, many: int = 1
) -> Any:
    """Episodes at once whose answering expert is behind an endpoint, and what it has counted."""
    models = make_models({"large": config}, environ=environ or {})
    tools = Tools(
        experts=Experts(models, OPTIONS.breaker), searcher=None, sandbox=None, options=OPTIONS
    )
    try:
        played = (play(ANSWER_2, served=Served(tools, Judge())) for _ in range(many))
        return await asyncio.gather(*played), models.metrics()
    finally:
        await models.close()


async def test_t15_customers_are_played_by_the_model_that_the_run_names() -> None:
    async with FakeChat(lambda messages: "Hello.") as named, FakeChat(lambda messages: "") as other:
        config = UserConfig(strategy="llm", base_url=f"{named.url}/v1", model="mine", key_env="")
        url = f"{other.url}/v1"
        environ = {"OPENAI_BASE_URL": url, "OPENAI_MODEL": "other", "DASHSCOPE_BASE_URL": url}
        customers = Customers(config, Services(environ=environ))
        await customers.check()
        await customers.close()
        assert {call.body["model"] for call in named.calls} == {"mine"} and other.calls == []


async def test_t16_the_key_of_an_expert_is_in_no_trace_metric_error_or_output(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secret = "sk-" + "0123456789abcdef"
    async with FakeChat(lambda messages: "The answer is \\boxed{42}.") as server:
        config = expert_model(server, key_env="EXPERT_KEY")
        [right], metrics = await answered(config, {"EXPERT_KEY": secret})
        server.misbehave = lambda call: status(401, f"no such key: {secret}")
        [lost], more = await answered(config, {"EXPERT_KEY": secret})
    assert right.metrics["correct"] == 1 and lost.ending.label == "lost:engine"
    out = capfd.readouterr()
    shown = (right, right.transcript, lost, lost.ending, metrics, more, out, caplog.records)
    assert not [one for one in shown if secret in repr(one)]


async def test_t21_experts_share_a_client_that_is_bounded_asks_again_and_is_closed() -> None:
    running = most = 0
    connections: set[Any] = set()

    async with FakeChat(lambda messages: "The answer is \\boxed{42}.") as server:

        async def counted(request: web.Request, honest: Any) -> web.StreamResponse:
            nonlocal running, most
            running += 1
            most = max(most, running)
            connections.add(request.transport)
            await asyncio.sleep(0)
            running -= 1
            return web.json_response(await honest())

        def misbehave(call: Call) -> Any:
            return status(503) if call.number == 0 else counted

        server.misbehave = misbehave
        episodes, metrics = await answered(expert_model(server, concurrency=2), many=6)
        assert [one.metrics["correct"] for one in episodes] == [1.0] * 6
        assert len(server.calls) == 7 and most <= 2 and len(connections) <= 2
        # The client is closed with the run, and so are its connections.
        for _ in range(100):
            if all(one.is_closing() for one in connections):
                break
            await asyncio.sleep(0.01)
        assert all(one.is_closing() for one in connections)


@pytest.mark.parametrize("path", presets(), ids=lambda path: path.name)
def test_t26_nothing_that_starts_a_run_kills_by_name_or_deletes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"pkill|killall|ray stop|rm -r|/tmp/", text)
