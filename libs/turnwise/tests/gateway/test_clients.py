"""What agents of other libraries sent, as recorded, against a gateway: without those libraries."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.client import serving
from gateway.recorded import (
    COMMANDS,
    CORPUS,
    PLAYS,
    Play,
    alike,
    check,
    read,
    read_answer,
    signatures,
    signed,
)


def test_every_play_is_recorded_and_nothing_else() -> None:
    assert {path.stem for path in CORPUS.glob("*.jsonl")} == {
        play.name for play in (*PLAYS, *COMMANDS)
    }


@pytest.mark.parametrize("play", (*PLAYS, *COMMANDS), ids=lambda play: play.name)
async def test_a_recorded_agent_is_answered_as_then_and_trained_on_what_it_sampled(
    play: Play,
) -> None:
    known: dict[str, str] = {}
    async with serving(*play.replies()) as client:
        for one in read(CORPUS / f"{play.name}.jsonl"):
            headers = {"x-stainless-retry-count": "1"} if one.retry else None
            path = one.path.removeprefix("v1/")
            status, said, data = await client.post(path, signed(one.body, known), headers=headers)
            answer: Any = read_answer(data, said["Content-Type"].split(";")[0])
            known |= signatures(answer)
            assert (status, alike(answer)) == (one.status, one.answer), (
                "it is answered otherwise than when it was recorded; see CONTRIBUTING.md"
            )
        check(play, client.record, client.engine)
