"""Published rows of conversations (`func_call`) as customers of ours.

| published                       | ours                                                        |
|---------------------------------|-------------------------------------------------------------|
| `metadata.eid` (`retail____12`) | `metadata.eid`, the task's id in `overlap.json`             |
| its domain, `metadata.domain`   | `metadata.domain`; one that is not τ²-bench's is counted    |
| `metadata.example`, the task    | `metadata.task_id` and `task_set` where the benchmark has   |
|                                 | it, else the whole task as `metadata.task`                  |
| `metadata.model_mapping`        | `metadata.experts`, all of the tool `call_expert`           |
| `metadata.user_llm`             | counted: a run has a customer of its own                    |

A row without `example` has the task of its id, in the version that its domain has by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taubench.source import SourceError
from taubench.tau2 import DOMAINS, as_published, default_task_set, task_by_id, task_from_json
from turnwise.config import ConfigError
from turnwise.rows.checks import shown

from apps.trainers.toolorchestra.rows import OWN_TASK_SET

CATEGORY = "func_call"


def is_played(domain: str) -> bool:
    """Whether customers of the domain exist outside of the file that names it."""
    return domain in DOMAINS


def customer(domain: str, task_id: str, example: Any, where: str) -> dict[str, Any]:
    """The metadata of a customer, beside its experts and what its row prefers.

    Args:
        domain: One that `is_played`.
        task_id: By the row's eid.
        example: The task as the row has it; None where it has none.

    Raises:
        ConfigError: naming the row: there is no such task, it is none, or it is another one's.
    """
    metadata = {"category": CATEGORY, "domain": domain}
    try:
        if example is None:
            task_by_id(domain, task_id)
            task_set = default_task_set(domain)
            return {**metadata, "task_id": task_id, "task_set": task_set}
        if not isinstance(example, Mapping):
            raise ConfigError(f"{where}: example: expected a task, found {shown(example)}")
        task = as_published(task_from_json(domain, example, OWN_TASK_SET))
    except KeyError:
        raise ConfigError(
            f"{where}: {domain} has no task {task_id!r:.60}, and no example"
        ) from None
    except (SourceError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None
    if str(task.id) != task_id:
        raise ConfigError(
            f"{where}: example: is task {task.id!r:.60}, the eid says {task_id!r:.60}"
        )
    if task.raw is example:
        return {**metadata, "task_id": task_id, "task": dict(example)}
    return {**metadata, "task_id": task_id, "task_set": task.task_set}
