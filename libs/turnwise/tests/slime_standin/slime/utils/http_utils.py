"""`post` and `get` as slime's rollout uses them: JSON both ways, a session for each call."""

from __future__ import annotations

from typing import Any

import aiohttp


async def post(
    url: str, payload: Any, max_retries: int = 60, headers: dict[str, str] | None = None
) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=payload or {}, headers=headers) as response,
    ):
        response.raise_for_status()
        return await response.json(content_type=None)


async def get(url: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        response.raise_for_status()
        return await response.json(content_type=None)
