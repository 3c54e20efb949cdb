"""Users of a benchmark that is none of ours: what `turnwise.users` gives to any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError
from turnwise.models import Answer
from turnwise.replay import Replay
from turnwise.users import (
    MAX_MESSAGE_CHARACTERS,
    CachedUser,
    LlmUser,
    ReplayedUser,
    ReplyCache,
    ResumableUser,
    User,
    UserConfig,
    UserMaker,
    UserMessage,
    UserReply,
    check_message,
)


@dataclass(frozen=True)
class Errand:
    id: str = "errand/1"
    instruction: str = "Buy bread."


class ShopRole:
    """A role of a few words: `END` ends."""

    version, stop, greeting = 7, "END", "Yes?"

    def rules(self, instruction: str, *, thinks: bool) -> str:
        return f"{instruction} {thinks}"

    def reminder(self) -> str:
        return "Form!"

    def check(self, instruction: str, dialogue: Sequence[tuple[str, str]], draft: str) -> str:
        return f"{instruction} {[who for who, _ in dialogue]} {draft}"

    def reflect(self, draft: str, reason: str) -> str:
        return reason

    def read(self, answer: str) -> UserMessage:
        return UserMessage(answer.replace("END", "").strip(), "END" in answer)

    def read_labelled(self, answer: str) -> UserMessage:
        return self.read(answer)

    def read_verdict(self, answer: str) -> tuple[bool, str] | None:
        return True, ""

    def heard(self, agent_text: object) -> str:
        return agent_text if isinstance(agent_text, str) else "..."

    def puts_stop_off(self, heard: str, message: UserMessage) -> bool:
        return False


@dataclass
class Script:
    """A frozen model that says each answer once, then the last for good."""

    answers: list[str]
    name: str = "user"
    asked: list[list[dict[str, Any]]] = field(default_factory=list)

    async def ask(self, messages: Sequence[Any], **options: Any) -> Answer:
        self.asked.append([dict(message) for message in messages])
        return Answer(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


def user(*answers: str) -> tuple[LlmUser, Script]:
    model = Script(list(answers))
    return LlmUser(model, ShopRole(), name="llm-7(x)", deadline_s=30.0), model


async def test_any_frozen_model_plays_any_role() -> None:
    played, model = user("One loaf.", "Thanks. END")
    assert await played.reset(Errand()) == "One loaf."
    assert await played.reply("Here.") == UserReply("Thanks. END", done=True)
    assert model.asked[1] == [
        {"role": "system", "content": "Buy bread. False"},
        {"role": "user", "content": "Yes?"},
        {"role": "assistant", "content": "One loaf."},
        {"role": "user", "content": "Here."},
    ]


async def test_a_model_that_says_too_much_is_asked_again_and_then_lost_to_the_user() -> None:
    long = "x" * (MAX_MESSAGE_CHARACTERS + 1)
    played, _ = user(long, "One loaf.")
    assert await played.reset(Errand()) == "One loaf."
    played, model = user(long)
    with pytest.raises(BoundaryError, match="3 answers that hold no message") as caught:
        await played.reset(Errand())
    assert caught.value.boundary is Boundary.USER and len(model.asked) == 3


@pytest.mark.parametrize("bad", [None, 7, b"x", "x" * (MAX_MESSAGE_CHARACTERS + 1)])
def test_a_message_that_no_person_writes_is_the_users_failure(bad: object) -> None:
    with pytest.raises(BoundaryError) as caught:
        check_message(bad)
    assert caught.value.boundary is Boundary.USER


def test_a_message_of_the_greatest_length_passes() -> None:
    text = "x" * MAX_MESSAGE_CHARACTERS
    assert check_message(text) == text and check_message("") == ""


class Forgetful:
    """A user that can't go on with a conversation."""

    name = "forgetful"

    async def reset(self, scenario: Any) -> str:
        return "Hi."

    async def reply(self, agent_text: object) -> UserReply:
        return UserReply("What?")


async def test_who_can_not_go_on_says_so_at_the_user(tmp_path: Path) -> None:
    forgetful: User = Forgetful()
    assert not isinstance(forgetful, ResumableUser)
    before = Replay()
    await ReplayedUser(forgetful, before).reset(Errand())
    replayed = ReplayedUser(forgetful, Replay(before.calls))
    assert await replayed.reset(Errand()) == "Hi."
    cache = ReplyCache(tmp_path / "replies.jsonl")
    first, second = (CachedUser(Forgetful, cache, name="f") for _ in range(2))
    assert await first.reset(Errand()) == await second.reset(Errand()) == "Hi."
    for one in (replayed, second):
        with pytest.raises(BoundaryError, match="has no resume") as caught:
            await one.reply("And?")
        assert caught.value.boundary is Boundary.USER


async def test_an_interrupted_conversation_goes_on_with_a_model_that_is_told_it() -> None:
    before = Replay()
    first = ReplayedUser(user("One loaf.", "Rye.")[0], before)
    await first.reset(Errand())
    await first.reply("Which?")
    played, model = user("A big one.")
    replayed = ReplayedUser(played, Replay(before.calls))
    assert await replayed.reset(Errand()) == "One loaf."
    assert await replayed.reply("Which?") == UserReply("Rye.")
    assert not model.asked
    assert await replayed.reply("How big?") == UserReply("A big one.")
    told = [message["content"] for message in model.asked[0][2:]]
    assert told == ["One loaf.", "Which?", "Rye.", "How big?"]


def test_a_strategy_that_nobody_has_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="unknown 'lmm'; did you mean 'llm'"):
        UserConfig(strategy="lmm")
    with pytest.raises(ConfigError, match="unknown 'offline'"):
        UserConfig(strategy="offline")


async def test_a_benchmark_brings_users_of_its_own() -> None:
    class ShopConfig(UserConfig):
        own_strategies = ("forgetful",)

    users = UserMaker(
        ShopConfig(strategy="forgetful"), role=ShopRole(), own={"forgetful": Forgetful}, environ={}
    )
    await users.check()
    assert users.name == "forgetful" and await users().reset(Errand()) == "Hi."
    assert users.metrics()["user/requests"] == 0
    await users.close()
