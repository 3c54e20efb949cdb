"""Agents of other libraries, installed from their packages, against a gateway on this machine.

TURNWISE_RECORD_CORPUS=FOLDER writes what passes into that folder. The agents that are programs of
their own are played where TURNWISE_CODEX, TURNWISE_OPENCODE, TURNWISE_CLAUDE and TURNWISE_MINI
name them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from gateway.client import Client, serving
from gateway.recorded import COMMANDS, PLAYS, Play, Tap, check, drive, write
from turnwise.gateway.command import client_environment
from turnwise.testing import fail

DRIVE = Path(__file__).with_name("drive.py")
SIGN_S = 0.002
CLIENTS = sorted({play.client for play in PLAYS})
# For an engine that fails at once.
REFUSED = tuple(Play(client=name, says=(), segments=()) for name in CLIENTS)
# For one that lets a stream wait.
WAITING = tuple(play for play in PLAYS if play.stream)
Played = tuple[dict[str, Any], Client, Tap]


async def play_all(python: Path, home: Path) -> dict[str, Played]:
    """Every play's outcome, rollout and exchanges."""
    made: dict[str, tuple[Client, Tap]] = {}
    urls: dict[str, tuple[Play, str]] = {}

    async def begin(name: str, play: Play, **options: Any) -> Client:
        replies = play.replies() or [fail("gone")]
        client = await stack.enter_async_context(serving(*replies, **options))
        tap = await stack.enter_async_context(Tap(client.url, lose=play.lose))
        made[name], urls[name] = (client, tap), (play, tap.url)
        return client

    async with AsyncExitStack() as stack:
        for play in (*PLAYS, *REFUSED):
            await begin(play.name, play)
        for play in WAITING:
            wait_before_each(await begin(waiting(play), play, keepalive_s=SIGN_S))
        outcomes = await drive(python, DRIVE, urls, home)
    return {name: (outcomes[name], *one) for name, one in made.items()}


def waiting(play: Play) -> str:
    return f"{play.name}-waiting"


def wait_before_each(client: Client) -> None:
    """Lets every turn last for many signs of life, however busy the machine is."""
    sample = client.engine.generate

    async def slowly(*args: Any, **named: Any) -> Any:
        for _ in range(20):
            await asyncio.sleep(SIGN_S)
        return await sample(*args, **named)

    client.engine.generate = slowly  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def played(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played]:
    """All plays, in one process of the clients."""
    return asyncio.run(play_all(python, tmp_path_factory.mktemp("home")))


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.name)
def test_an_agent_of_another_library_is_trained_on_what_it_sampled(
    play: Play, played: dict[str, Played]
) -> None:
    outcome, client, tap = played[play.name]
    assert outcome.get("said") == "Grass.", outcome.get("error", outcome)
    check(play, client.record, client.engine)
    keep(play, tap)


def keep(play: Play, tap: Tap) -> None:
    """Records what passed, where that is asked for."""
    if "TURNWISE_RECORD_CORPUS" in os.environ:
        write(Path(os.environ["TURNWISE_RECORD_CORPUS"]) / f"{play.name}.jsonl", tap.exchanges)


@pytest.mark.parametrize("play", WAITING, ids=lambda play: play.name)
def test_signs_of_life_change_nothing(play: Play, played: dict[str, Played]) -> None:
    outcome, client, tap = played[waiting(play)]
    assert outcome.get("said") == "Grass.", outcome.get("error", outcome)
    check(play, client.record, client.engine)
    kinds = [event["type"] for one in tap.exchanges for event in one.answer if "type" in event]
    if kinds:
        turns = len(play.says)
        assert max(kinds.count("ping"), kinds.count("response.in_progress")) > 3 * turns


@pytest.mark.parametrize("play", REFUSED, ids=lambda play: play.name)
def test_a_refusal_that_no_retry_can_mend_is_not_sent_again(
    play: Play, played: dict[str, Played]
) -> None:
    outcome, client, tap = played[play.name]
    assert "the engine failed" in outcome["error"]
    assert client.record.counts["requests"] == len(tap.exchanges) == 1


CODEX = """
model = "policy"
model_provider = "gateway"
web_search = "disabled"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.gateway]
name = "gateway"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "KEY"
"""


def codex(home: Path, url: str) -> list[str]:
    """Its settings in a home folder, and its arguments."""
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").write_text(CODEX.format(url=url))
    return ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]


def opencode(home: Path, url: str) -> list[str]:
    """The same of it."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "gateway",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"policy": {"name": "policy", "limit": {"context": 10**5, "output": 2000}}},
    }
    settings = {
        "provider": {"gateway": provider},
        "model": "gateway/policy",
        "small_model": "gateway/policy",
        "autoupdate": False,
        "share": "disabled",
    }
    (home / ".config/opencode").mkdir(parents=True)
    (home / ".config/opencode/opencode.json").write_text(json.dumps(settings))
    return ["run", "--pure", "--auto", "--title", "title"]


def claude(home: Path, url: str) -> list[str]:
    """The same of Claude Code, which finds the rest in `client_environment`."""
    return ["-p", "--model", "policy", "--allowedTools", "Bash", "Edit", "--"]


def mini(home: Path, url: str) -> list[str]:
    """The same of mini-swe-agent, which takes litellm's names of models."""
    return ["-m", "openai/policy", "-y", "--exit-immediately", "-t"]


SETTINGS = {"codex": codex, "opencode": opencode, "claude": claude, "mini": mini}


@pytest.mark.parametrize("play", COMMANDS, ids=lambda play: play.client)
async def test_a_command_is_trained_on_what_it_sampled(play: Play, tmp_path: Path) -> None:
    variable = f"TURNWISE_{play.client.upper()}"
    program = os.environ.get(variable)
    if not program:
        pytest.skip(f"{variable} names no {play.client}; see CONTRIBUTING.md")
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    async with serving(*play.replies()) as client, Tap(client.url) as tap:
        settings = SETTINGS[play.client](home, tap.url)
        process = await asyncio.create_subprocess_exec(
            program,
            *settings,
            "What grows here?",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=work,
            env={
                **client_environment(tap.url, home),
                "KEY": "none",
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "MSWEA_CONFIGURED": "true",
                "MSWEA_COST_TRACKING": "ignore_errors",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
        )
        said, _ = await asyncio.wait_for(process.communicate(), 300)
        assert process.returncode == 0 and b"Grass." in said, said.decode()
        check(play, client.record, client.engine)
    keep(play, tap)
