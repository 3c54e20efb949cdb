"""The endpoint whose model is evaluated, and the look at it before anything is played."""

from __future__ import annotations

import os

from taubench.episode import Services
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError
from turnwise.models.client import ChatClient
from turnwise.models.config import ChatConfig

from apps.evaluators.tau.options import EvalOptions

ANSWER_DEADLINE_S = 600.0
"""For one turn of the model with every repeat; `Services.engine_deadline_s` may be less."""
ATTEMPT_S = 300.0


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
    """Asks whether the endpoint is there and takes the tools.

    Raises:
        ConfigError: if the key's variable is named but not set.
        PreflightError: naming the URL and what was found.
    """
    client = make_client(options)
    try:
        await client.check(tools=services.view.tools(options.env))
    except BoundaryError as error:
        raise PreflightError(
            f"--base-url {options.base_url}, --model {options.model}: no answer: {error}"
        ) from None
    finally:
        await client.close()
