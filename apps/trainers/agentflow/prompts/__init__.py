"""What every model of an episode is shown; `base` says what there is to show."""

from __future__ import annotations

from apps.trainers.agentflow.prompts.base import PromptName, Prompts
from apps.trainers.agentflow.prompts.compact import CompactPrompts
from apps.trainers.agentflow.prompts.full import FullPrompts

__all__ = ["PromptName", "Prompts", "make_prompts"]

_PROMPTS: dict[str, type[Prompts]] = {"full": FullPrompts, "compact": CompactPrompts}


def make_prompts(name: str) -> Prompts:
    """
    Raises:
        ValueError: there are no prompts of that name.
    """
    if name not in _PROMPTS:
        raise ValueError(f"prompt must be one of {', '.join(_PROMPTS)}, found {name!r}")
    return _PROMPTS[name]()
