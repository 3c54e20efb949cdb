"""The endpoint whose model is evaluated, and the look at it before anything is played."""

from __future__ import annotations

import os

import aiohttp
from taubench.episode import Services
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError
from turnwise.models.client import ChatClient, ChatConfig

from apps.evaluators.tau.options import EvalOptions

ANSWER_DEADLINE_S = 600.0
"""For one turn of the model with every repeat; `Services.engine_deadline_s` may be less."""
ATTEMPT_S = 300.0
CHECK_DEADLINE_S = 60.0


def make_client(options: EvalOptions) -> ChatClient:
    """Raises ConfigError if the key's variable is named but not set."""
    assert options.base_url is not None and options.model is not None
    name = options.api_key_env
    if name and not os.environ.get(name, "").strip():
        raise ConfigError(f"--api-key-env: the environment variable {name} is not set")
    return ChatClient(
        ChatConfig(
            base_url=options.base_url,
            model=options.model,
            key_env=name or "",
            temperature=options.temperature,
            max_tokens=options.max_response_len,
            deadline_s=ANSWER_DEADLINE_S,
            attempt_s=ATTEMPT_S,
            concurrency=options.concurrency,
        ),
        boundary=Boundary.ENGINE,
        environ=os.environ,
    )


async def check_endpoint(options: EvalOptions, services: Services) -> None:
    """One request without repeats finds out whether somebody is there, one answer what it can do.

    Raises:
        ConfigError: if the key's variable is named but not set.
        PreflightError: naming the URL and what was found.
    """
    client = make_client(options)
    try:
        await _reach(str(options.base_url))
        await client.complete(
            [{"role": "user", "content": "Hello"}],
            tools=services.view.tools(options.env),
            usable=lambda words: True,
            deadline_s=CHECK_DEADLINE_S,
        )
    except BoundaryError as error:
        raise PreflightError(
            f"--base-url {options.base_url}, --model {options.model}: no answer: {error}"
        ) from None
    finally:
        await client.close()


async def _reach(url: str) -> None:
    """Raises PreflightError if no connection can be made; any answer will do."""
    timeout = aiohttp.ClientTimeout(total=CHECK_DEADLINE_S, sock_connect=15.0)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url.rstrip('/')}/models", allow_redirects=False),
        ):
            pass
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        raise PreflightError(f"--base-url {url}: nobody answers: {what}") from None
