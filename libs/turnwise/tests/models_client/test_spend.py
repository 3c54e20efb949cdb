"""Cost and its cap."""

from __future__ import annotations

import asyncio

import pytest
from turnwise.episode import Boundary
from turnwise.spend import LOOK_AGAIN_S, Spend, SpendCapReached


def test_tokens_are_priced_per_million() -> None:
    spend = Spend(read_price=0.075, write_price=0.30)
    spend.pay(1_000_000, 100_000, estimated=False)
    spend.pay(10, 10, estimated=True)
    assert spend.usd == pytest.approx(0.075 + 0.03 + 10 * 0.375e-6)
    assert spend.row() == {
        "requests": 2.0,
        "read_tokens": 1_000_010.0,
        "written_tokens": 100_010.0,
        "usd": spend.usd,
        "estimated": 1.0,
    }


def test_requests_under_way_count_against_the_cap() -> None:
    spend = Spend(read_price=1.0, write_price=1.0, cap_usd=1.0)
    first = spend.pledge(400_000, 0, boundary=Boundary.USER)
    spend.pledge(400_000, 0, boundary=Boundary.USER)
    with pytest.raises(SpendCapReached, match=r"\$1\.00 .*\$0\.8000 set aside") as caught:
        spend.pledge(400_000, 0, boundary=Boundary.JUDGE)
    assert caught.value.boundary is Boundary.JUDGE
    spend.release(first)
    spend.pay(100_000, 0, estimated=False)
    spend.pledge(400_000, 0, boundary=Boundary.USER)


async def test_what_is_set_aside_is_waited_for_and_what_is_spent_is_not() -> None:
    spend = Spend(write_price=1.0, cap_usd=1.0)
    first = spend.pledge(0, 800_000, boundary=Boundary.USER)
    waiting = asyncio.create_task(spend.reserve(0, 400_000, boundary=Boundary.USER))
    await asyncio.sleep(2 * LOOK_AGAIN_S)
    assert not waiting.done() and not spend.refusal
    spend.pay(0, 100_000, estimated=False)
    spend.release(first)
    assert await waiting == pytest.approx(0.4)
    spend.release(0.4)
    spend.pay(0, 700_000, estimated=False)
    with pytest.raises(SpendCapReached):
        await spend.reserve(0, 400_000, boundary=Boundary.USER)
    assert "the spend cap of $1.00 is reached" in spend.refusal


def test_without_a_cap_nothing_is_refused() -> None:
    Spend(read_price=1e9).pledge(1e9, 1e9, boundary=Boundary.USER)
