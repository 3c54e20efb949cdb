"""Trains agents that are not ours to change: a policy behind the endpoints that they speak to.

A program is given a base URL in place of its provider's; what it was sampled is what is trained.

| module     | holds                                                                    |
|------------|--------------------------------------------------------------------------|
| `fields`   | what becomes of each field of a request, as the docs show it             |
| `requests` | a request, an answer and a refusal, whatever dialect they are written in |
| `chat`, `messages`, `responses` | the dialects: body to request, turn to answer      |
| `reading`  | what was sampled as the client gets it                                   |
| `handles`  | names that a client sends back, and that nobody else can make            |
| `record`   | the turns of one rollout: place, sampling, delivery, what is trained     |
| `server`   | HTTP: one base URL for each rollout                                      |
| `command`  | an agent that is a command, in a process group and a workspace of its own |
| `callback` | an agent that a service runs elsewhere                                   |
| `method`   | `Harness`: such an agent as a method, with its reward                    |
"""

from turnwise.gateway.record import Record
from turnwise.gateway.server import Gateway
from turnwise.gateway.turns import Bounds

__all__ = ["Bounds", "Gateway", "Record"]
