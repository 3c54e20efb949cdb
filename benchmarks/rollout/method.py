"""tau with a customer behind an endpoint, asked with or without giving way."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

from slime_standin.methods import EndpointUser, TauWith
from taubench.method import TauOptions
from taubench.users import UserConfig
from turnwise.engine.http import HttpPool

TURNS = 4
"""Sampled turns of an episode; each is a message to the customer, who leaves at the last."""
CUSTOMERS = HttpPool()


class BlockingUser(EndpointUser):
    """Asks its endpoint without giving way, as a synchronous environment does."""

    async def _ask(self) -> str:
        body = json.dumps({"model": "user", "messages": self._messages}).encode()
        request = urllib.request.Request(f"{self._url}/v1/chat/completions", body)
        with urllib.request.urlopen(request) as response:
            text: str = json.load(response)["choices"][0]["message"]["content"]
        self._messages.append({"role": "assistant", "content": text})
        return text


def make_method(options: Mapping[str, Any]) -> TauWith:
    """tau with a customer behind the endpoint `user_url`."""
    user = BlockingUser if options["blocking"] else EndpointUser
    tau = TauOptions(user=UserConfig(strategy="offline"), max_turns=TURNS, user_deadline_s=3600)
    return TauWith(tau, lambda: user(options["url"], CUSTOMERS))
