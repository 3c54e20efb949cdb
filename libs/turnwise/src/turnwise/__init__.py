"""Turnwise trains LLM agents with reinforcement learning over many turns.

What a method of one's own is written with stands here; each name is imported when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwise.conversation import Conversation, Overflow, Turn
    from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit, crossing
    from turnwise.evaluation.command import evaluate_method as evaluate
    from turnwise.local.command import train_method as train
    from turnwise.method import Method, MethodOptions, Services
    from turnwise.policy import AnyPolicy, EndpointPolicy, Policy
    from turnwise.rollout import Rollout
    from turnwise.rows import Row

_HOMES = {
    "AnyPolicy": "turnwise.policy",
    "Boundary": "turnwise.episode",
    "BoundaryError": "turnwise.episode",
    "Conversation": "turnwise.conversation",
    "Ending": "turnwise.episode",
    "EndpointPolicy": "turnwise.policy",
    "Episode": "turnwise.episode",
    "Limit": "turnwise.episode",
    "Method": "turnwise.method",
    "MethodOptions": "turnwise.method",
    "Overflow": "turnwise.conversation",
    "Policy": "turnwise.policy",
    "Rollout": "turnwise.rollout",
    "Row": "turnwise.rows",
    "Services": "turnwise.method",
    "Turn": "turnwise.conversation",
    "crossing": "turnwise.episode",
    "evaluate": "turnwise.evaluation.command:evaluate_method",
    "train": "turnwise.local.command:train_method",
}

__all__ = [
    "AnyPolicy",
    "Boundary",
    "BoundaryError",
    "Conversation",
    "Ending",
    "EndpointPolicy",
    "Episode",
    "Limit",
    "Method",
    "MethodOptions",
    "Overflow",
    "Policy",
    "Rollout",
    "Row",
    "Services",
    "Turn",
    "crossing",
    "evaluate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'turnwise' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)
