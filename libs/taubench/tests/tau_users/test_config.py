"""From options to users, and the person at the terminal."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from taubench import STOP
from taubench.users import OfflineUser, UserConfig, UserMaker
from turnwise.config import ConfigError
from turnwise.users import HumanUser, Terminal, UserReply

from .endpoint import task, users_with


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strategy": "lmm"}, "strategy"),
        ({"base_url": "http://h/v1"}, "GEMINI_API_KEY would be sent to h"),
        ({"user_replay": True}, "user-replay: needs user-cache"),
        ({"strategy": "offline", "user_cache": Path("x")}, "user-cache: offline asks no model"),
        ({"cache": Path("x")}, "cache"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        UserConfig(**options)


def test_a_key_that_is_not_there_is_said_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="GEMINI_API_KEY is not set"):
        UserMaker(UserConfig(), environ={})


@pytest.mark.parametrize("strategy", ["offline", "human"])
def test_who_asks_no_model_needs_no_key(strategy: str) -> None:
    users = UserMaker(UserConfig(strategy=strategy), environ={})
    assert users.model is None
    assert users.spend.usd == 0


async def test_the_offline_user_is_the_same_as_ever() -> None:
    users = UserMaker(UserConfig(strategy="offline"), environ={})
    assert isinstance(users(), OfflineUser)
    assert users() is not users()
    assert users.name == OfflineUser().name
    await users.close()


async def test_all_users_share_spend_and_cap() -> None:
    options = {"write_price": 1.0, "max_tokens": 10, "spend_cap_usd": 0.00005}
    async with users_with("llm", "Hi.", **options) as (users, endpoint):
        for _ in range(5):
            await users().reset(task())
        with pytest.raises(Exception, match="spend cap"):
            await users().reset(task())
    assert users.spend.usd == pytest.approx(0.00005)
    assert users.metrics() == {
        "user/requests": 5.0,
        "user/read_tokens": 100.0,
        "user/written_tokens": 50.0,
        "user/usd": pytest.approx(0.00005),
        "user/estimated": 0.0,
        "user/retries": 0.0,
        "user/empty_replies": 0.0,
        "user/rejections": 0.0,
        "user/truncated": 0.0,
        "user/failures": 1.0,
    }
    assert len(endpoint.asked) == 5


async def test_a_person_sees_the_part_and_the_agent_and_answers() -> None:
    sink = io.StringIO()
    source = io.StringIO("Hello\nCancel it \udcff\n\n/stop\n")
    user = HumanUser(Terminal(source, sink), stop=STOP)
    assert await user.reset(task()) == "Hello"
    assert await user.reply("How can I help?") == UserReply("Cancel it ?")
    assert await user.reply(None) == UserReply("")
    assert await user.reply("Done.") == UserReply(STOP, done=True)
    shown = sink.getvalue()
    assert task().instruction in shown
    assert "> How can I help?" in shown and "> (silence)" in shown


async def test_a_person_who_leaves_stops() -> None:
    user = HumanUser(Terminal(io.StringIO("Hello\n"), io.StringIO()), stop=STOP)
    await user.reset(task())
    assert await user.reply("Yes?") == UserReply(STOP, done=True)


async def test_a_stop_beside_words_ends() -> None:
    user = HumanUser(Terminal(io.StringIO(f"Hi\nBye {STOP}\n"), io.StringIO()), stop=STOP)
    await user.reset(task())
    assert await user.reply("Yes?") == UserReply(f"Bye {STOP}", done=True)


class Silence(io.StringIO):
    """A person who does not answer."""

    def readline(self, size: int | None = -1, /) -> str:
        import threading

        threading.Event().wait(2)
        return ""


async def test_a_person_who_does_not_answer_blocks_nothing() -> None:
    user = HumanUser(Terminal(Silence(), io.StringIO()), stop=STOP)
    asked = asyncio.create_task(user.reset(task()))
    await asyncio.sleep(0.05)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
