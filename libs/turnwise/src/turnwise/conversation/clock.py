"""The time of a whole episode, whose loss belongs to whom it waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from turnwise.episode import Boundary, BoundaryError, DeadlineExceeded, Ending


async def play_within(
    wall_s: float, play: Callable[[], Awaitable[Ending]], waiting_for: Callable[[], Boundary]
) -> Ending:
    """The ending that `play` comes to, or `lost`: at the boundary that failed, and after `wall_s`
    seconds at the one that `waiting_for` names then. Other errors pass through.
    """
    clock = asyncio.timeout(wall_s)
    try:
        async with clock:
            return await play()
    except BoundaryError as error:
        return Ending.lost(error)
    except TimeoutError:
        if not clock.expired():
            raise
        late = f"the episode took more than {wall_s:g} s"
        return Ending.lost(DeadlineExceeded(waiting_for(), late))
