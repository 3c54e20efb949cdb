"""An agent of its own is run, graded and blamed as it must be."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from turnwise.episode import Boundary, Episode, Limit
from turnwise.gateway.command import CommandResult
from turnwise.gateway.method import Harness, HarnessOptions
from turnwise.method import Services, play
from turnwise.rows import Row
from turnwise.testing import ScriptedEngine, byte_policy, fail, reply, say

from gateway.client import USER, rollout


class Asking(Harness[HarnessOptions, str]):
    """Asks `asks` times and returns the last words."""

    asks = 1
    graded: Any = 0.5

    def task(self, row: Row) -> str:
        return str(row.prompt)

    async def agent(self, base_url: str, task: str) -> Any:
        history, words = [USER], ""
        async with aiohttp.ClientSession() as http:
            for _ in range(self.asks):
                async with http.post(
                    f"{base_url}/v1/chat/completions", json={"messages": history}
                ) as answer:
                    answer.raise_for_status()
                    message = (await answer.json())["choices"][0]["message"]
                history += [message, USER]
                words = message["content"]
        return words

    def reward(self, task: str, result: Any) -> float:
        if isinstance(self.graded, Exception):
            raise self.graded
        return float(self.graded) if not callable(self.graded) else self.graded(result)


async def run(method: Harness[Any, Any], *script: Any, **limits: int) -> Episode:
    engine = ScriptedEngine([say(one) if isinstance(one, str) else one for one in script])
    await method.open(Services())
    try:
        return await play(method, rollout(), byte_policy(engine, **limits))
    finally:
        await method.close()


def made(cls: type[Asking] = Asking, options: dict[str, Any] | None = None, **more: Any) -> Asking:
    method = cls(HarnessOptions(**(options or {})))
    for name, value in more.items():
        setattr(method, name, value)
    return method


async def test_an_agent_is_graded_by_what_it_returns_and_its_turns_are_trained() -> None:
    episode = await run(made(asks=2, graded=lambda words: float(words == "two")), "one", "two")
    assert episode.ending.label == "finished" and episode.score == 1.0
    (segment,) = episode.segments
    assert segment.trained_tokens == 8 and segment.weight == 1.0
    assert [row["author"] for row in episode.transcript] == ["user", "policy", "user", "policy"]
    for row in episode.transcript:
        start, stop = row["span"]
        assert 0 <= start < stop <= len(segment.ids)


async def test_an_agent_that_fails_is_lost_and_never_a_zero() -> None:
    class Broken(Asking):
        async def agent(self, base_url: str, task: str) -> Any:
            await super().agent(base_url, task)
            raise RuntimeError("a bug of the agent")

    episode = await run(made(Broken), "one")
    assert episode.ending.boundary is Boundary.HARNESS and episode.score is None
    assert "a bug of the agent" in str(episode.ending.error)


async def test_an_agent_that_asks_nothing_is_lost() -> None:
    episode = await run(made(asks=0))
    assert episode.ending.boundary is Boundary.HARNESS and episode.score is None


async def test_an_agent_that_hangs_is_lost_at_its_deadline() -> None:
    class Hanging(Asking):
        async def agent(self, base_url: str, task: str) -> Any:
            await asyncio.sleep(3600)

    episode = await run(made(Hanging, {"harness_deadline_s": 0.05}))
    assert episode.ending.boundary is Boundary.HARNESS
    assert str(episode.ending.error).startswith("deadline: ")


async def test_a_dead_engine_is_the_engines_even_if_the_agent_swallows_it() -> None:
    class Swallowing(Asking):
        async def agent(self, base_url: str, task: str) -> Any:
            try:
                return await super().agent(base_url, task)
            except aiohttp.ClientResponseError:
                return "all is well"

    episode = await run(made(Swallowing, graded=1.0, asks=2), "one", fail("gone"))
    assert episode.ending.boundary is Boundary.ENGINE and episode.score is None


@pytest.mark.parametrize("bad", [RuntimeError("x"), float("nan"), lambda words: None])
async def test_a_dead_reward_function_never_yields_a_reward(bad: Any) -> None:
    episode = await run(made(graded=bad), "one")
    assert episode.ending.boundary is Boundary.JUDGE and episode.score is None


async def test_a_reward_function_that_hangs_is_lost_and_blocks_nobody() -> None:
    slow = made(options={"reward_deadline_s": 0.05}, graded=lambda words: time.sleep(1) or 1.0)
    episode = await run(slow, "one")
    assert episode.ending.boundary is Boundary.JUDGE and episode.score is None


async def test_an_agent_that_fails_at_the_policys_bound_is_stopped_and_scored() -> None:
    episode = await run(made(options={"max_turns": 1, "limit_score": -1.0}, asks=2), "one", "two")
    assert episode.ending.limit is Limit.TURNS and episode.score == -1.0


async def test_an_agent_that_returns_with_a_cut_turn_is_stopped_and_graded() -> None:
    episode = await run(made(), "a long answer", max_new_tokens=3)
    assert episode.ending.limit is Limit.TOKENS and episode.score == 0.5


async def test_an_aborted_turn_is_cancelled() -> None:
    episode = await run(made(), reply([], finish="abort"))
    assert episode.ending.label == "cancelled" and episode.score is None


SCRIPT = """
import json, os, pathlib, sys, urllib.request
assert "SECRET_OF_OURS" not in os.environ and os.getcwd() == os.path.realpath(os.environ["HOME"])
body = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
answer = json.load(urllib.request.urlopen(urllib.request.Request(url, body)))
pathlib.Path("answer.txt").write_text(answer["choices"][0]["message"]["content"])
print(pathlib.Path("task.txt").read_text())
"""


class Commanded(Asking):
    """A command that asks once and writes a file."""

    script = SCRIPT
    seen: Path | None = None

    async def agent(self, base_url: str, task: str) -> Any:
        return await Harness.agent(self, base_url, task)

    def prepare(self, task: str, workspace: Path) -> None:
        (workspace / "task.txt").write_text(task)

    def command(self, task: str) -> list[str]:
        return [sys.executable, "-c", self.script]

    def reward(self, task: str, result: CommandResult) -> float:
        self.seen = result.workspace
        assert result.output == "t\n"
        return float((result.workspace / "answer.txt").read_text() == "one")


async def test_a_command_runs_in_a_workspace_without_our_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_OF_OURS", "x")
    method = made(Commanded)
    episode = await run(method, "one")
    assert episode.ending.label == "finished" and episode.score == 1.0, episode.ending
    assert isinstance(method, Commanded) and method.seen is not None and not method.seen.exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import sys; sys.exit('no luck')", "no luck"),
        ("import os; os.kill(os.getpid(), 9)", "KILL"),
    ],
)
async def test_a_command_that_fails_is_lost(script: str, said: str) -> None:
    episode = await run(made(Commanded, script=script))
    assert episode.ending.boundary is Boundary.HARNESS and said in str(episode.ending.error)
    assert episode.score is None and not episode.segments


@pytest.mark.parametrize(
    ("options", "script", "said"),
    [
        ({"command_memory_mb": 200}, "b = bytearray(2**30)", "MemoryError"),
        ({"command_cpu_s": 1}, "while True: pass", "XCPU"),
    ],
)
async def test_a_command_keeps_its_limits_or_is_lost(
    options: dict[str, int], script: str, said: str
) -> None:
    within = {"command_memory_mb": 500, "command_cpu_s": 60}
    assert (await run(made(Commanded, within), "one")).score == 1.0
    episode = await run(made(Commanded, options, script=script))
    assert episode.ending.boundary is Boundary.HARNESS and said in str(episode.ending.error)
    assert episode.score is None


async def test_a_command_that_is_not_there_is_lost() -> None:
    class Missing(Commanded):
        def command(self, task: str) -> list[str]:
            return ["no-such-agent"]

    episode = await run(made(Missing))
    assert episode.ending.boundary is Boundary.HARNESS and "no-such-agent" in str(episode.ending)


async def test_a_command_ends_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    script = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
open({str(mark)!r}, "w").write(str(child.pid))
time.sleep(3600)
"""
    playing = asyncio.create_task(run(made(Commanded, script=script)))
    while not mark.exists() or not mark.read_text():
        await asyncio.sleep(0.02)
    child = Path(f"/proc/{mark.read_text()}/stat")
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    assert not child.exists() or child.read_text().split(")")[1].split()[0] == "Z"
