"""Tasks with their flags, and what a domain gives the agent."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from taubench.flags import shipped_flags
from taubench.source import domain_files, raw_tasks
from taubench.task import Task


@cache
def load_tasks(domain: str, split: str) -> tuple[Task, ...]:
    """The tasks of a split in upstream's order, with their flags.

    Args:
        domain: `retail` (train 500, dev 20, test 115 tasks) or `airline` (test 50).
        split: `train`, `dev` or `test`.

    Raises:
        ValueError: unknown domain or split.
        SourceError: tau-trait is missing or not version 0.1.1.
    """
    return tuple(
        Task(
            domain=domain,
            split=split,
            index=index,
            user_id=raw.user_id,
            instruction=raw.instruction,
            actions=tuple(raw.actions),
            outputs=tuple(raw.outputs),
            flags=flags,
        )
        for index, (raw, flags) in enumerate(
            zip(raw_tasks(domain, split), shipped_flags(domain, split), strict=True)
        )
    )


def tool_schemas(domain: str) -> list[dict[str, Any]]:
    """OpenAI function schemas of the domain's tools in upstream's order; the caller's copy."""
    return copy.deepcopy(list(domain_files(domain).schemas))


def wiki(domain: str) -> str:
    """The policy document that upstream uses as the system prompt."""
    return domain_files(domain).wiki


def rules(domain: str) -> tuple[str, ...]:
    """Upstream's rule list; empty for airline."""
    return domain_files(domain).rules


def user_profile(task: Task) -> dict[str, Any]:
    """The user's record at the start of the task; the caller's copy.

    Raises:
        KeyError: the task's `user_id` is not in the users table.
    """
    return copy.deepcopy(domain_files(task.domain).tables["users"][task.user_id])
