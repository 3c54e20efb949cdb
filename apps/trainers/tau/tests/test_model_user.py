"""Whole episodes whose user is played by a model."""

from __future__ import annotations

import pytest
from tau_users.endpoint import users_with
from taubench import STOP
from turnwise.users import MAX_MESSAGE_CHARACTERS

from apps.trainers.tau.tests.playing import (
    Customer,
    cancel_task,
    play,
    right_call,
    rollout,
    scripted,
)

CANCEL = cancel_task()


async def test_an_episode_with_a_model_as_user_ends_after_the_write_it_agreed_to() -> None:
    replies = ("Cancel it, please.", f"Yes, go ahead. Thanks! {STOP}", "never asked")
    async with users_with("llm", *replies) as (users, endpoint):
        made, _ = scripted("Shall I cancel it (yes/no)?", right_call(CANCEL), "It is cancelled.")
        episode = await play(made, rollout(CANCEL), make_user=users)
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    assert episode.info["user"] == "llm-1(m,temperature=1)"
    said = [m["content"] for m in episode.transcript if m["author"] == episode.info["user"]]
    assert said == ["Cancel it, please.", "Yes, go ahead. Thanks!", STOP]
    assert len(endpoint.asked) == 2


@pytest.mark.parametrize("bad", [401, None, "###OUT-OF-SCOPE###", "x" * 200_000])
async def test_a_model_that_fails_as_user_never_yields_a_reward(bad: str | int | None) -> None:
    async with users_with("llm", "Cancel it.", bad) as (users, _):
        made, _ = scripted("Which one?", right_call(CANCEL), "Done.")
        episode = await play(made, rollout(CANCEL), make_user=users)
    assert (episode.ending.label, episode.score) == ("lost:user", None)


@pytest.mark.parametrize("opening", [True, False])
async def test_a_message_too_long_for_a_person_is_never_the_policys_overflow(
    opening: bool,
) -> None:
    long = "x" * (MAX_MESSAGE_CHARACTERS + 1)
    user = Customer([long], opening=long if opening else "Cancel it.")
    made, _ = scripted("Which one?", right_call(CANCEL), "Done.")
    episode = await play(made, rollout(CANCEL), make_user=lambda: user)
    assert (episode.ending.label, episode.score) == ("lost:user", None)
