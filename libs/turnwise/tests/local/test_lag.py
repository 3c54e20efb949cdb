"""The lag monitor sees what blocks the loop."""

from __future__ import annotations

import asyncio
import time

from turnwise.local.lag import LagMonitor


def test_a_blocked_loop_shows_in_the_maximum_alone() -> None:
    async def run() -> LagMonitor:
        async with LagMonitor(interval_s=0.001) as lag:
            await asyncio.sleep(0.05)
            time.sleep(0.2)
            await asyncio.sleep(0.05)
        return lag

    lag = asyncio.run(run())
    assert lag.max_s > 0.15
    assert lag.p50_s < lag.max_s / 2
    assert lag.samples > 3


def test_a_block_that_lasts_until_the_end_is_seen() -> None:
    async def run() -> LagMonitor:
        async with LagMonitor() as lag:
            time.sleep(0.1)
        return lag

    assert asyncio.run(run()).max_s > 0.05


def test_no_look_is_no_lag() -> None:
    async def run() -> LagMonitor:
        async with LagMonitor(interval_s=60) as lag:
            pass
        return lag

    lag = asyncio.run(run())
    assert (lag.samples, lag.p50_s, lag.max_s) == (0, 0.0, 0.0)
