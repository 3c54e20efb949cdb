"""The objective turn-mean: denominators of slime's loss against the NumPy reference."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from slime.observability import logging_utils  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    generate_and_rm_group,
)
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import to_train_data
from slime_standin.errands import Courier, spoken
from turnwise.objective import rollout_mask_sums
from turnwise.slime import train_data
from turnwise.testing.servers import Call, FakeSGLang, Turn, status


@pytest.fixture(autouse=True)
def own_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging_utils, "log", logging_utils.log)


PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 1024}
TURN_MEAN = {"method": "slime_standin.methods:TwoSegments", "objective": "turn-mean"}


class Talker(Courier):
    """Says more in each call than in the one before."""

    async def answer(self, call: Call) -> Turn:
        return spoken("word " * (1 + call.number))


@pytest.fixture
def courier() -> Courier:
    return Talker()


def rows(*numbers: int) -> list[Any]:
    return [Sample(prompt=str(n), index=n, group_index=0) for n in numbers]


def rank(data: dict[str, list[Any]], places: list[int]) -> dict[str, Any]:
    """What a rank of slime's trainer gets of the training data."""
    part: dict[str, Any] = {
        key: [values[place] for place in places] for key, values in data.items()
    }
    part["loss_masks"] = [np.array(mask, np.int32) for mask in part["loss_masks"]]
    part["rollout_mask_sums"] = np.array(part["rollout_mask_sums"], np.float32)
    return part


async def test_each_turn_is_divided_by_its_own_tokens_times_the_turns_of_its_rollout(
    args: Callable[..., Any],
) -> None:
    arguments = args(turnwise=TURN_MEAN)
    data = to_train_data(arguments, [await generate_and_rm_group(arguments, rows(1, 2, 3), PARAMS)])
    counts = [sum(mask) for mask in data["loss_masks"]]
    assert len(set(counts)) == 6 and data["round_number"] == [2] * 6
    expected = rollout_mask_sums(counts, data["rollout_ids"], "turn-mean")
    assert not np.array_equal(expected, data["rollout_mask_sums"])
    # Turns of a rollout lie on several ranks.
    for places in ([0, 2, 4], [1, 3], [5]):
        part = rank(data, places)
        train_data(arguments, 0, part)
        assert part["rollout_mask_sums"].tolist() == [expected[place] for place in places]


async def test_a_lost_episode_is_a_turn_without_a_loss(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    first: list[str] = []

    def misbehave(call: Call) -> Any:
        first.append(call.session)
        return status(400) if call.session == first[0] else None

    server.misbehave = misbehave
    arguments = args(turnwise=TURN_MEAN)
    group = await generate_and_rm_group(arguments, rows(1, 2, 3), PARAMS)
    data = to_train_data(arguments, [group])
    part = rank(data, list(range(5)))
    train_data(arguments, 0, part)
    at = [place for place, mask in enumerate(data["loss_masks"]) if not sum(mask)]
    assert len(at) == 1 and part["round_number"][at[0]] == 1
    assert part["rollout_mask_sums"][at[0]] == 0


async def test_without_the_objective_the_samples_say_nothing_of_turns(
    args: Callable[..., Any],
) -> None:
    arguments = args(turnwise={**TURN_MEAN, "objective": "rollout-token-mean"})
    group = await generate_and_rm_group(arguments, rows(1, 2), PARAMS)
    data = to_train_data(arguments, [group])
    assert "round_number" not in data
    part = rank(data, [0])
    train_data(arguments, 0, part)
    assert part["rollout_mask_sums"].tolist() == [data["rollout_mask_sums"][0]]
    with pytest.raises(KeyError, match="round_number: the samples do not say"):
        train_data(args(turnwise=TURN_MEAN), 0, rank(data, [0]))


@pytest.mark.parametrize("alike", [False, True])
async def test_every_segment_carries_what_the_server_said_about_its_own_turn(
    args: Callable[..., Any], server: FakeSGLang, alike: bool
) -> None:
    def spans(call: Call, turn: Turn) -> dict[str, Any]:
        """One token kept for each sampled one: the number of the call."""
        ids = np.full(len(turn.ids), call.number, "<i4")
        offsets = np.arange(len(turn.ids) + 1, dtype="<i4")
        return {
            "weight_version": str(call.number),
            "top_p_token_ids": base64.b64encode(ids.tobytes()).decode(),
            "top_p_token_offsets": base64.b64encode(offsets.tobytes()).decode(),
        }

    server.more_meta = spans
    if alike:
        server._answer = Courier(wrong=lambda number: True).answer
    helped = {**TURN_MEAN, "method": "slime_standin.methods:Helped"}
    arguments = args(turnwise=helped, rollout_top_p=0.9)
    (episode,) = await generate_and_rm_group(arguments, rows(1), {**PARAMS, "top_p": 0.9})
    # The first call is no segment.
    assert [set(one.rollout_top_p_token_ids) for one in episode] == [{1}, {2}]
    assert [one.weight_versions for one in episode] == [["1"], ["2"]]


async def test_a_segment_of_tokens_that_were_not_sampled_is_lost(
    args: Callable[..., Any],
) -> None:
    inventing = {**TURN_MEAN, "method": "slime_standin.methods:Inventing"}
    ((sample,),) = await generate_and_rm_group(args(turnwise=inventing), rows(1), PARAMS)
    facts = sample.metadata["turnwise"]
    assert (facts["ending"], sample.reward) == ("lost:engine", None)
    assert "is no turn of the engine" in facts["error"]
