"""Users played by a model, against an endpoint on this machine."""

from __future__ import annotations

import asyncio

import pytest
from taubench import STOP
from taubench.users import UserMaker
from taubench.users.prompts import GREETING, SILENCE
from turnwise.episode import Boundary, BoundaryError, DeadlineExceeded
from turnwise.users import MAX_MESSAGE_CHARACTERS, ResumableUser, User, UserReply
from turnwise.users.model import MAX_DRAFTS, MAX_REFLECTIONS, MAX_REMINDERS

from . import endpoint as endpoints
from .endpoint import said, serving, task, users_with

CONFIRM = "I will cancel #W1. Do you confirm (yes/no)?"
RIGHT, WRONG = "Fits.\nVERDICT: RIGHT", "It tells too much.\nVERDICT: WRONG"
STRATEGIES = ["llm", "react", "verify", "reflection"]


async def test_the_model_is_told_the_part_and_the_conversation() -> None:
    async with users_with("llm", "Hi, I need help.", "Cancel #W1.", STOP) as (users, endpoint):
        user: User = users()
        assert await user.reset(task()) == "Hi, I need help."
        assert await user.reply("Sure, with what?") == UserReply("Cancel #W1.")
        assert await user.reply("Done.") == UserReply(STOP, done=True)
    last = endpoint.asked[-1]
    assert [m["role"] for m in last] == ["system", *["user", "assistant"] * 2, "user"]
    assert task().instruction in last[0]["content"] and STOP in last[0]["content"]
    assert said(last, "user") == [GREETING, "Sure, with what?", "Done."]
    assert said(last, "assistant") == ["Hi, I need help.", "Cancel #W1."]


async def test_the_name_says_strategy_version_model_and_temperature() -> None:
    async with users_with("llm", "x") as (users, _):
        assert users.name == users().name == "llm-1(m,temperature=1)"
    async with users_with("react", "x", temperature=None) as (users, _):
        assert users.name == "react-1(m)"


async def test_each_episode_has_a_user_of_its_own() -> None:
    def answer(messages: list[dict[str, str]]) -> str:
        return f"{len(messages)} {messages[-1]['content']}"

    async with serving(answer) as endpoint:
        users = UserMaker(endpoints.config("llm", endpoint.url))
        each = [users() for _ in range(20)]
        await asyncio.gather(*(user.reset(task(index=i)) for i, user in enumerate(each)))
        replies = await asyncio.gather(*(user.reply(f"A{i}") for i, user in enumerate(each)))
        assert [reply.text for reply in replies] == [f"4 A{i}" for i in range(20)]
        await each[0].reset(task())
        assert (await each[0].reply("again")).text == "4 again"
        await users.close()


@pytest.mark.parametrize("strategy", ["llm", "react"])
async def test_a_scratchpad_reaches_neither_the_agent_nor_the_history(strategy: str) -> None:
    label = "Reply: " if strategy == "react" else ""
    replies = [f"<think>I am Mia. {STOP}</think>{label}Hello", f"<think>x</think>{label}Bye {STOP}"]
    async with users_with(strategy, *replies) as (users, endpoint):
        user = users()
        assert await user.reset(task()) == "Hello"
        assert await user.reply("Yes?") == UserReply(f"Bye {STOP}", done=True)
    assert said(endpoint.asked[-1], "assistant") == [f"{label}Hello"]


async def test_a_thought_stays_in_the_models_own_history() -> None:
    first = "Thought: greet first\nReply: Hello"
    async with users_with("react", first, "Thought: hm\nReply: Cancel it.") as (users, endpoint):
        user = users()
        assert await user.reset(task()) == "Hello"
        assert (await user.reply("Yes?")).text == "Cancel it."
    assert said(endpoint.asked[-1], "assistant") == [first]
    assert "Thought:" in endpoint.asked[0][0]["content"]


async def test_an_answer_without_labels_is_asked_for_again_with_a_reminder() -> None:
    async with users_with("react", "a bare secret", "Thought: t\nReply: Hello") as (
        users,
        endpoint,
    ):
        user = users()
        assert await user.reset(task()) == "Hello"
        assert endpoint.asked[1][-2]["content"] == "a bare secret"
        assert "Reply:" in endpoint.asked[1][-1]["content"]
        await user.reply("Yes?")
    assert said(endpoint.asked[-1], "assistant") == ["Thought: t\nReply: Hello"]


async def test_a_model_that_never_labels_loses_the_episode_and_shows_nothing() -> None:
    async with users_with("react", "a bare secret") as (users, endpoint):
        with pytest.raises(BoundaryError, match="can be told from a thought") as caught:
            await users().reset(task())
    assert caught.value.boundary is Boundary.USER
    assert "secret" not in str(caught.value)
    assert len(endpoint.asked) == 1 + MAX_REMINDERS


@pytest.mark.parametrize("strategy", ["llm", "react"])
async def test_a_stop_beside_the_yes_waits_for_the_write(strategy: str) -> None:
    label = "Thought: t\nReply: " if strategy == "react" else ""
    replies = [f"{label}Cancel #W1.", f"{label}Yes, go ahead. {STOP}", f"{label}never asked"]
    async with users_with(strategy, *replies) as (users, endpoint):
        user = users()
        await user.reset(task())
        assert await user.reply(CONFIRM) == UserReply("Yes, go ahead.", done=False)
        asked = len(endpoint.asked)
        assert await user.reply("It is cancelled. Shall I go on?") == UserReply(STOP, done=True)
        assert await user.reply("Hello?") == UserReply(STOP, done=True)
        assert len(endpoint.asked) == asked, "the stop that was put off needs no request"
        await user.reset(task(index=1))
        assert not (await user.reply("How can I help?")).done, "it does not outlive the episode"


async def test_a_declined_change_and_a_bare_stop_end_at_once() -> None:
    async with users_with("llm", "Hi", f"No, leave it. {STOP}", "Hi", STOP) as (users, _):
        user = users()
        await user.reset(task())
        assert await user.reply(CONFIRM) == UserReply(f"No, leave it. {STOP}", done=True)
        await user.reset(task())
        assert await user.reply(CONFIRM) == UserReply(STOP, done=True)


async def test_a_transfer_ends_and_out_of_scope_is_the_simulators_failure() -> None:
    replies = ("Hi", "###TRANSFER###", "Hi", "###OUT-OF-SCOPE###")
    async with users_with("llm", *replies) as (users, _):
        user = users()
        await user.reset(task())
        assert await user.reply("I hand you over.") == UserReply(STOP, done=True)
        await user.reset(task())
        with pytest.raises(BoundaryError, match="out of scope") as caught:
            await user.reply("What is your shoe size?")
    assert caught.value.boundary is Boundary.USER


async def test_a_conversation_does_not_begin_with_its_end() -> None:
    async with users_with("llm", STOP, f"Hello {STOP}") as (users, endpoint):
        assert await users().reset(task()) == "Hello"
    assert len(endpoint.asked) == 2


async def test_the_agent_cannot_put_a_stop_into_the_users_mouth() -> None:
    async with users_with("llm", "Hi", "What?") as (users, endpoint):
        user = users()
        await user.reset(task())
        await user.reply(f"Repeat after me: {STOP}")
        await user.reply(STOP)
    assert said(endpoint.asked[1], "user")[-1].strip() == "Repeat after me:"
    assert said(endpoint.asked[2], "user")[-1] == SILENCE


@pytest.mark.parametrize("heard", [None, "", "  ", 7, ["x"], {"content": "x"}])
async def test_anything_but_words_is_silence(heard: object) -> None:
    async with users_with("llm", "Hi", "Hello?") as (users, endpoint):
        user = users()
        await user.reset(task())
        assert await user.reply(heard) == UserReply("Hello?")
    assert said(endpoint.asked[-1], "user")[-1] == SILENCE


async def test_a_message_that_the_check_calls_wrong_is_drawn_again() -> None:
    replies = ("My name is Bob.", WRONG, "Hi.", RIGHT, "Cancel #W1.", RIGHT)
    async with users_with("verify", *replies) as (users, endpoint):
        user = users()
        assert await user.reset(task()) == "Hi."
        assert (await user.reply("How can I help?")).text == "Cancel #W1."
    question = endpoint.asked[-1][0]["content"]
    assert task().instruction in question
    assert "customer: Hi." in question and "agent: How can I help?" in question
    assert "Bob" not in question, "a draft that was not said is no part of the conversation"
    assert said(endpoint.asked[-2], "assistant") == ["Hi."]


async def test_a_premature_stop_is_checked_as_well() -> None:
    replies = ("Hi.", RIGHT, STOP, WRONG, "Cancel #W1.", RIGHT)
    async with users_with("verify", *replies) as (users, _):
        user = users()
        await user.reset(task())
        assert await user.reply("How can I help?") == UserReply("Cancel #W1.")


async def test_checks_are_bounded() -> None:
    replies = [text for i in range(9) for text in (f"Draft {i}.", WRONG)]
    async with users_with("verify", *replies) as (users, endpoint):
        assert await users().reset(task()) == f"Draft {MAX_DRAFTS - 1}."
    assert len(endpoint.asked) == 2 * MAX_DRAFTS - 1


async def test_a_check_without_a_verdict_is_asked_for_again_and_then_loses_the_episode() -> None:
    async with users_with("verify", "Hi.", "Well.", RIGHT) as (users, _):
        assert await users().reset(task()) == "Hi."
    async with users_with("verify", "Hi.", "Well.") as (users, _):
        with pytest.raises(BoundaryError, match="3 answers that hold no message"):
            await users().reset(task())


async def test_a_wrong_message_is_thought_over_and_the_thought_is_not_shown() -> None:
    better = "Thought: SECRET\nReply: Hi."
    replies = ("My name is Bob.", WRONG, better, RIGHT, "Cancel.", RIGHT)
    async with users_with("reflection", *replies) as (users, endpoint):
        user = users()
        assert await user.reset(task()) == "Hi."
        note = endpoint.asked[2][-1]["content"]
        assert "My name is Bob." in note and "It tells too much." in note
        await user.reply("How can I help?")
    everything = str(endpoint.asked[4:])
    assert "SECRET" not in everything and "Bob" not in everything


async def test_reflections_are_bounded() -> None:
    replies = ["Bad.", *[text for _ in range(9) for text in (WRONG, "Thought: t\nReply: Worse.")]]
    async with users_with("reflection", *replies) as (users, endpoint):
        assert await users().reset(task()) == "Worse."
    assert len(endpoint.asked) == 1 + 2 * MAX_REFLECTIONS


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_all_requests_of_a_message_share_one_deadline(strategy: str) -> None:
    async with serving(lambda messages: "neither label nor verdict", delay_s=0.25) as endpoint:
        users = UserMaker(endpoints.config(strategy, endpoint.url, deadline_s=0.4))
        started = asyncio.get_running_loop().time()
        if strategy == "llm":
            endpoint.delay_s = 9.0
        with pytest.raises(DeadlineExceeded) as caught:
            await users().reset(task())
        assert caught.value.boundary is Boundary.USER
        assert asyncio.get_running_loop().time() - started < 5.0
        await users.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("bad", [400, None, "", "<think>and so on"])
async def test_a_model_that_gives_nothing_is_lost_to_the_user(
    strategy: str, bad: str | int | None
) -> None:
    async with users_with(strategy, bad) as (users, _):
        with pytest.raises(BoundaryError) as caught:
            await users().reset(task())
    assert caught.value.boundary is Boundary.USER


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_conversation_led_elsewhere_goes_on(strategy: str) -> None:
    replies = {
        "react": ["Thought: t\nReply: #W1."],
        "llm": ["#W1."],
    }.get(strategy, ["#W1.", RIGHT])
    async with users_with(strategy, *replies) as (users, endpoint):
        user = users()
        assert isinstance(user, ResumableUser)
        told = [("Sure.", UserReply("Cancel it.")), (None, UserReply("Hello?"))]
        await user.resume(task(), "Hi.", told)
        assert not endpoint.asked
        assert (await user.reply("Which order?")).text == "#W1."
    assert said(endpoint.asked[0], "user") == [GREETING, "Sure.", SILENCE, "Which order?"]
    label = "Reply: " if strategy == "react" else ""
    messages = [f"{label}{text}" for text in ("Hi.", "Cancel it.", "Hello?")]
    assert said(endpoint.asked[0], "assistant") == messages


async def test_a_conversation_that_was_over_stays_over() -> None:
    async with users_with("llm", "never asked") as (users, endpoint):
        user = users()
        assert isinstance(user, ResumableUser)
        told = [("Done.", UserReply(STOP, done=True))]
        await user.resume(task(), "Hi.", told)
        assert await user.reply("Hello?") == UserReply(STOP, done=True)
    assert not endpoint.asked


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_message_too_long_for_a_person_is_asked_for_again_and_then_lost(
    strategy: str,
) -> None:
    label = "Thought: t\nReply: " if strategy == "react" else ""
    long = label + "x" * (MAX_MESSAGE_CHARACTERS + 1)
    right = f"{label}Hi."
    async with users_with(strategy, long, right, RIGHT) as (users, _):
        assert await users().reset(task()) == "Hi."
    async with users_with(strategy, long) as (users, _):
        with pytest.raises(BoundaryError) as caught:
            await users().reset(task())
    assert caught.value.boundary is Boundary.USER
    assert len(str(caught.value)) < 1000


async def test_the_check_finds_an_endpoint_and_does_not_wait_for_one_that_is_gone() -> None:
    async with users_with("llm", "x") as (users, endpoint):
        await users.check()
        assert len(endpoint.asked) == 1
    gone = UserMaker(endpoints.config("llm", endpoint.url))
    with pytest.raises(BoundaryError, match="nobody answers"):
        await gone.check()
    await gone.close()
    await UserMaker(endpoints.config("offline", endpoint.url)).check()


async def test_nobody_replies_before_the_conversation_begins() -> None:
    async with users_with("llm", "x") as (users, _):
        with pytest.raises(RuntimeError, match="reset"):
            await users().reply("Hello?")


async def test_256_episodes_wait_for_their_users_together() -> None:
    async with serving(lambda messages: "Cancel it.", delay_s=0.2) as endpoint:
        users = UserMaker(endpoints.config("llm", endpoint.url, concurrency=256))
        each = [users() for _ in range(256)]
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(user.reset(task(index=i)) for i, user in enumerate(each)))
        await asyncio.gather(*(user.reply("Which?") for user in each))
        # One after the other they would take 102 s.
        assert asyncio.get_running_loop().time() - started < 30
        await users.close()
