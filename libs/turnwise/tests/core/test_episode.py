"""Endings and blame."""

import asyncio

import pytest
from turnwise.episode import (
    Boundary,
    BoundaryError,
    DeadlineExceeded,
    Ending,
    Episode,
    Limit,
    crossing,
)


async def test_a_failure_is_attributed_to_the_boundary_that_was_crossed() -> None:
    with pytest.raises(BoundaryError, match="KeyError: 'x'") as caught:
        async with crossing(Boundary.JUDGE):
            raise KeyError("x")
    assert caught.value.boundary is Boundary.JUDGE


async def test_an_inner_boundary_keeps_the_blame() -> None:
    with pytest.raises(BoundaryError) as caught:
        async with crossing(Boundary.ENVIRONMENT):
            async with crossing(Boundary.USER):
                raise OSError("refused")
    assert caught.value.boundary is Boundary.USER


async def test_a_deadline_is_told_from_a_time_out_inside() -> None:
    with pytest.raises(DeadlineExceeded, match="within 0.01 s"):
        async with crossing(Boundary.USER, deadline_s=0.01):
            await asyncio.sleep(10)
    with pytest.raises(BoundaryError) as caught:
        async with crossing(Boundary.USER, deadline_s=10):
            raise TimeoutError("socket")
    assert not isinstance(caught.value, DeadlineExceeded)


async def test_cancellation_is_nobodys_fault() -> None:
    async def work() -> None:
        async with crossing(Boundary.ENGINE):
            await asyncio.sleep(10)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("ending", "by_policy", "label"),
    [
        (Ending.finished(), True, "finished"),
        (Ending.stopped(Limit.CONTEXT), True, "stopped:context"),
        (Ending.lost(BoundaryError(Boundary.TOOL_SERVER, "x")), False, "lost:tool_server"),
        (Ending.cancelled(), False, "cancelled"),
    ],
)
def test_only_the_policys_endings_carry_a_score(
    ending: Ending, by_policy: bool, label: str
) -> None:
    assert (ending.by_policy, ending.label) == (by_policy, label)
    Episode("r", "g", "t", (), ending, 1.0 if by_policy else None, [])
    with pytest.raises(ValueError, match="score"):
        Episode("r", "g", "t", (), ending, None if by_policy else 0.0, [])


def test_an_ending_without_its_reason_cannot_be_built() -> None:
    with pytest.raises(ValueError):
        Ending("lost")
    with pytest.raises(ValueError):
        Ending("finished", limit=Limit.TURNS)
    with pytest.raises(ValueError):
        Ending("died")
