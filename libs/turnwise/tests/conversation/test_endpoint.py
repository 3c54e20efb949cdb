"""A model behind an endpoint leads the same conversation, without tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from turnwise.conversation import CallError, Conversation, Overflow, ToolCall, Turn
from turnwise.conversation.endpoint import HANDED_ON, NOT_MADE
from turnwise.episode import Boundary, Ending, Limit
from turnwise.models.answer import ChatReply
from turnwise.models.answer import ToolCall as WireCall
from turnwise.models.client import ConversationTooLong
from turnwise.models.config import ChatConfig
from turnwise.policy import EndpointPolicy
from turnwise.rollout import Rollout

Message = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "hello"}


class Endpoint:
    """Answers with `replies` in turn; keeps what it was sent."""

    def __init__(self, *replies: ChatReply | Exception) -> None:
        self.replies = list(replies)
        self.sent: list[list[Message]] = []
        self.options: list[dict[str, Any]] = []
        self.config: ChatConfig | None = None

    async def complete(self, messages: list[Message], **options: Any) -> ChatReply:
        self.sent.append([dict(message) for message in messages])
        self.options.append(options)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def said(text: str, *calls: tuple[str, str, str], finish: str = "stop") -> ChatReply:
    made = tuple(WireCall(*one) for one in calls)
    return ChatReply(text, finish, 9, 3, tool_calls=made)


def talk(*replies: ChatReply | Exception) -> tuple[Conversation, Endpoint]:
    endpoint = Endpoint(*replies)
    client: Any = endpoint
    rollout = Rollout(task="t", task_id="task", rollout_id="r0", group_id="g", seed=7)
    return Conversation(EndpointPolicy(client=client), rollout, tools=TOOLS), endpoint


async def ask(chat: Conversation, *messages: Message) -> Turn:
    turn = await chat.ask(messages)
    assert isinstance(turn, Turn)
    return turn


async def test_every_call_is_answered_under_its_id_also_one_that_was_not_made() -> None:
    calls = (("a", "look", "{}"), ("b", "look", "{}"), ("", "look", "{}"))
    chat, endpoint = talk(said("", *calls), said("done"))
    await ask(chat, USER)
    await ask(chat, {"role": "tool", "name": "look", "content": "blue"})
    assistant, *answers = endpoint.sent[1][1:]
    assert [call["id"] for call in assistant["tool_calls"]] == ["a", "b", "call_0_2"]
    assert [(one["tool_call_id"], one["content"]) for one in answers] == [
        ("a", "blue"),
        ("b", NOT_MADE),
        ("call_0_2", NOT_MADE),
    ]


async def test_words_of_the_user_that_answer_a_call_are_said_as_the_users() -> None:
    chat, endpoint = talk(said("", ("a", "respond", "{}")), said("done"))
    await ask(chat, USER)
    await ask(chat, {"role": "user", "content": "Yes."})
    assert [one["content"] for one in endpoint.sent[1][2:]] == [HANDED_ON, "Yes."]
    assert [one["role"] for one in endpoint.sent[1][2:]] == ["tool", "user"]


@pytest.mark.parametrize("arguments", ['{"at": ', "[1]", "3"])
async def test_arguments_that_are_no_object_are_told_as_written_and_sent_as_none(
    arguments: str,
) -> None:
    chat, endpoint = talk(said("", ("a", "look", arguments)), said("done"))
    turn = await ask(chat, USER)
    assert turn.calls == (ToolCall("look", arguments),)
    assert [error.kind for error in turn.errors] == ["bad_arguments"]
    assert isinstance(turn.errors[0], CallError)
    await ask(chat, {"role": "tool", "name": "look", "content": "Error"})
    assert _sent_arguments(endpoint) == {}
    assert chat.transcript()[1]["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("arguments", ["", " \n"])
async def test_blank_arguments_are_no_arguments_and_no_error(arguments: str) -> None:
    chat, endpoint = talk(said("", ("a", "look", arguments)), said("done"))
    turn = await ask(chat, USER)
    assert (turn.calls, turn.errors) == ((ToolCall("look", {}),), ())
    await ask(chat, {"role": "tool", "name": "look", "content": "blue"})
    assert _sent_arguments(endpoint) == {}


async def test_empty_words_are_the_policys_own_and_are_not_asked_for_again() -> None:
    chat, endpoint = talk(said(""))
    turn = await ask(chat, USER)
    assert (turn.text, turn.ending) == ("", None)
    assert endpoint.options[0]["as_said"] is True


async def test_a_conversation_that_is_refused_for_its_length_is_an_overflow() -> None:
    chat, _ = talk(ConversationTooLong(Boundary.ENGINE, "too long"))
    found = await chat.ask([USER])
    assert isinstance(found, Overflow) and found.ending == Ending.stopped(Limit.CONTEXT)


async def test_an_answer_cut_for_its_length_says_how_the_episode_ends() -> None:
    chat, _ = talk(said("I will", ("a", "look", '{"at"'), finish="length"))
    turn = await ask(chat, USER)
    assert turn.ending == Ending.stopped(Limit.TOKENS)
    metrics = chat.metrics()
    assert (metrics["cut_turns"], metrics["parse_errors"], metrics["tool_calls"]) == (1, 0, 0)


@pytest.mark.parametrize(("own", "asked", "sent"), [(100, 30, 30), (20, 30, 20), (0, 30, 30)])
async def test_a_turns_limit_is_asked_for_within_the_clients(
    own: int, asked: int, sent: int
) -> None:
    chat, endpoint = talk(said("one"), said("two"))
    endpoint.config = ChatConfig(base_url="http://localhost:1/v1", model="m", max_tokens=own)
    await chat.fresh([USER], max_new_tokens=asked)
    await chat.fresh([USER])
    assert endpoint.options[0]["extra"]["max_tokens"] == sent
    assert "max_tokens" not in endpoint.options[1]["extra"]


async def test_no_tokens_are_known_so_the_episode_has_no_segments() -> None:
    chat, _ = talk(said("hi"))
    async with chat:
        await ask(chat, USER)
    episode = chat.episode(Ending.finished(), score=1.0)
    assert (episode.segments, episode.score) == ((), 1.0)
    assert episode.metrics["sampled_tokens"] == 3 and episode.metrics["prompt_tokens"] == 9


def _sent_arguments(endpoint: Endpoint) -> Any:
    (call,) = endpoint.sent[1][1]["tool_calls"]
    return json.loads(call["function"]["arguments"])
