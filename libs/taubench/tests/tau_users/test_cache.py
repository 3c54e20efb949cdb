"""Recorded replies: replay without requests, crashes, episodes that ask at the same time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from taubench import STOP
from taubench.users import UserConfig, UserMaker
from turnwise.command import RunError
from turnwise.config import ConfigError
from turnwise.episode import Boundary
from turnwise.users import CacheMiss, ReplyCache, ResumableUser, UserReply

from .endpoint import config, serving, task, users_with


async def talk(users: UserMaker, *heard: str | None, index: int = 0) -> list[Any]:
    user = users()
    opening = await user.reset(task(index=index))
    return [opening, *[await user.reply(text) for text in heard]]


def replaying(path: Path, **options: Any) -> UserMaker:
    settings = {"user_cache": path, "user_replay": True, **options}
    return UserMaker(config("llm", "http://127.0.0.1:9", **settings))


async def test_a_recorded_conversation_is_replayed_without_a_request(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    replies = ("Hi.", f"Yes. {STOP}", "never")
    async with users_with("llm", *replies, user_cache=path) as (users, _):
        first = await talk(users, "Shall I proceed?", "Done.")
    assert first == ["Hi.", UserReply("Yes."), UserReply(STOP, done=True)]
    users = replaying(path)
    assert users.model is None
    assert await talk(users, "Shall I proceed?", "Done.") == first
    assert await talk(users, "Shall I proceed?", "Done.") == first
    assert users.metrics()["user/cache_hits"] == 6
    assert users.metrics()["user/requests"] == 0


async def test_replay_needs_no_key(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    async with users_with("llm", "Hi.", user_cache=path) as (users, _):
        await talk(users)
    given = {"model": "m", "base_url": "http://127.0.0.1:9/v1", "key_env": "UNSET"}
    users = UserMaker(UserConfig(user_cache=path, user_replay=True, **given), environ={})
    assert await talk(users) == ["Hi."]


@pytest.mark.parametrize(
    ("heard", "index", "options"),
    [
        (["Something else."], 0, {}),
        (["Hello."], 1, {}),
        (["Hello."], 0, {"model": "another"}),
        (["Hello."], 0, {"temperature": 0.5}),
        (["Hello.", "More."], 0, {}),
        ([None], 0, {}),
    ],
)
async def test_what_is_not_recorded_is_a_clear_error(
    tmp_path: Path, heard: list[str | None], index: int, options: dict[str, Any]
) -> None:
    path = tmp_path / "replies.jsonl"
    async with users_with("llm", "Hi.", "Cancel it.", user_cache=path) as (users, _):
        await talk(users, "Hello.")
    assert await talk(replaying(path), "Hello.") == ["Hi.", UserReply("Cancel it.")]
    with pytest.raises(CacheMiss, match=r"replies\.jsonl: no reply of llm-1") as caught:
        await talk(replaying(path, **options), *heard, index=index)
    assert caught.value.boundary is Boundary.USER
    assert f"retail/mine/{index}" in str(caught.value)


async def test_another_instruction_under_the_same_id_is_another_conversation(
    tmp_path: Path,
) -> None:
    path = tmp_path / "replies.jsonl"
    async with users_with("llm", "Hi.", "Ho.", user_cache=path) as (users, endpoint):
        assert await users().reset(task("You want one thing.")) == "Hi."
        assert await users().reset(task("You want another.")) == "Ho."
    assert len(endpoint.asked) == 2


async def test_a_conversation_that_leaves_the_recorded_path_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    async with users_with("llm", "Hi.", "One.", "Two.", "Three.", user_cache=path) as (users, _):
        await talk(users, "A", "B")
    async with users_with("llm", "New.", "Newer.", user_cache=path) as (users, endpoint):
        said = await talk(users, "A", "C", "D")
    assert said == ["Hi.", UserReply("One."), UserReply("New."), UserReply("Newer.")]
    assert len(endpoint.asked) == 2
    contents = [message["content"] for message in endpoint.asked[0]][2:]
    assert contents == ["Hi.", "A", "One.", "C"], "the model is told what came from the cache"
    contents = [message["content"] for message in endpoint.asked[1]][2:]
    assert contents == ["Hi.", "A", "One.", "C", "New.", "D"]


async def test_episodes_that_say_the_same_at_the_same_time_ask_once(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    count = 0

    def answer(messages: Any) -> str:
        nonlocal count
        count += 1
        return f"Reply {count}."

    async with serving(answer, delay_s=0.02) as endpoint:
        users = UserMaker(config("llm", endpoint.url, user_cache=path))
        group = await asyncio.gather(*(talk(users, "A") for _ in range(16)))
        await users.close()
    assert all(said == ["Reply 1.", UserReply("Reply 2.")] for said in group)
    assert len(endpoint.asked) == 2
    assert len(path.read_text().splitlines()) == 2


async def test_who_waits_has_the_reply_that_one_who_was_cancelled_asked_for(tmp_path: Path) -> None:
    async with serving(lambda messages: "Hi.", delay_s=0.1) as endpoint:
        users = UserMaker(config("llm", endpoint.url, user_cache=tmp_path / "replies.jsonl"))
        first, second = (asyncio.create_task(talk(users)) for _ in range(2))
        await asyncio.sleep(0.05)
        first.cancel()
        assert await second == ["Hi."]
        await users.close()
    assert len(endpoint.asked) == 1


async def test_a_failure_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    async with users_with("llm", 400, "Hi.", user_cache=path) as (users, _):
        with pytest.raises(Exception, match="HTTP 400"):
            await talk(users)
        assert not path.exists()
        assert await talk(users) == ["Hi."]


async def test_a_crash_in_the_middle_of_a_line_costs_that_reply_alone(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    async with users_with("llm", "Hi.", "One.", user_cache=path) as (users, _):
        await talk(users, "A")
    whole = path.read_bytes()
    for cut in (1, 20, len(whole.splitlines()[1]) - 1):
        path.write_bytes(whole[:-cut])
        async with users_with("llm", "Again.", user_cache=path) as (users, _):
            assert await talk(users, "A") == ["Hi.", UserReply("Again.")]
        assert [json.loads(line)["text"] for line in path.open()] == ["Hi.", "Again."]


async def test_of_two_lines_with_one_key_the_first_counts(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    async with users_with("llm", "Hi.", user_cache=path) as (users, _):
        await talk(users)
    path.write_text(path.read_text() + path.read_text().replace("Hi.", "Ho."))
    assert await talk(replaying(path)) == ["Hi."]


@pytest.mark.parametrize("line", ["[]", "not JSON", '{"step": 1}', '{"key": "k", "text": 3}'])
def test_another_kind_of_file_is_refused_by_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"key": "k", "text": "t", "done": false}}\n{line}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl:2: "):
        replaying(path)


def test_there_must_be_something_to_replay(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        replaying(tmp_path / "none.jsonl")


async def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    path = tmp_path / "no such folder" / "replies.jsonl"
    async with users_with("llm", "Hi.", user_cache=path) as (users, _):
        with pytest.raises(RunError, match="can't be written"):
            await talk(users)


async def test_a_line_says_who_and_what_for_people(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    async with users_with("llm", "Hi.", f"Bye. {STOP}", user_cache=path) as (users, _):
        await talk(users, "A\ud800")
    rows = [json.loads(line) for line in path.open()]
    assert [{**row, "key": len(row["key"])} for row in rows] == [
        {
            "key": 64,
            "user": "llm-1(m,temperature=1)",
            "task": "retail/mine/0",
            "turn": 0,
            "heard": None,
            "text": "Hi.",
            "done": False,
        },
        {
            "key": 64,
            "user": "llm-1(m,temperature=1)",
            "task": "retail/mine/0",
            "turn": 1,
            "heard": "A\ufffd",
            "text": f"Bye. {STOP}",
            "done": True,
        },
    ]


async def test_the_key_of_the_endpoint_is_not_in_the_file(tmp_path: Path) -> None:
    path, key = tmp_path / "replies.jsonl", "sk-4f9c2d7e81a6b3"
    async with serving(lambda messages: f"My key is {key}.") as endpoint:
        users = UserMaker(
            config("llm", endpoint.url, key_env="K", user_cache=path), environ={"K": key}
        )
        assert await talk(users, "What?") == ["My key is [key].", UserReply("My key is [key].")]
        await users.close()
    assert key not in path.read_text()


async def test_a_conversation_led_elsewhere_goes_on_from_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    async with users_with("llm", "Hi.", "One.", "Two.", user_cache=path) as (users, _):
        await talk(users, "A", "B")
    user = replaying(path)()
    assert isinstance(user, ResumableUser)
    await user.resume(task(), "Hi.", [("A", UserReply("One."))])
    assert await user.reply("B") == UserReply("Two.")


async def test_a_reply_that_nobody_waits_for_any_more_is_recorded(tmp_path: Path) -> None:
    cache, answered = ReplyCache(tmp_path / "replies.jsonl"), asyncio.Event()

    async def ask() -> UserReply:
        await answered.wait()
        return UserReply("paid for")

    waiting = asyncio.create_task(cache.get({}, "key", ask))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    answered.set()
    await cache.close()
    assert len(ReplyCache(tmp_path / "replies.jsonl")) == 1
