"""Data rows as tasks: questions, and customers where a row's category says so.

    {"prompt": "retail 12", "metadata": {"category": "func_call", "domain": "retail",
     "task_id": "12", "task_set": "v1.0", "experts": [...], "preferences": {...}}}

`task_set` may be left out; the domain's default is then taken. `task` is a whole task in τ²-bench's
own form that the benchmark has not: it is played with the domain's data and the tools of version
26.3. A customer's experts all belong to the tool `call_expert`.
"""

from __future__ import annotations

from taubench.source import SourceError
from taubench.tau2 import DOMAINS, Tau2Task, task_by_id, task_from_json
from turnwise.config import ConfigError
from turnwise.rows import Row

from apps.trainers.toolorchestra.customer_task import CustomerTask
from apps.trainers.toolorchestra.tables import read_experts, read_preferences
from apps.trainers.toolorchestra.task import Defaults, Task, read_budget, to_task

CATEGORIES = ("qa", "func_call")
OWN_TASK_SET = "26.3"
"""The version whose tools a row's own task has."""
AnyTask = Task | CustomerTask


def read_task(row: Row, defaults: Defaults) -> AnyTask:
    """The task of a data row.

    Raises:
        ConfigError: naming the row.
    """
    where = row.where or f"row {row.id!r}"
    category = row.metadata.get("category", "qa")
    if category not in CATEGORIES:
        known = " or ".join(CATEGORIES)
        raise ConfigError(f"{where}: metadata.category: expected {known}, found {category!r:.60}")
    return to_task(row, defaults) if category == "qa" else _to_customer(row, defaults, where)


def _to_customer(row: Row, defaults: Defaults, where: str) -> CustomerTask:
    metadata = row.metadata
    experts = defaults.experts
    if metadata.get("experts") is not None:
        experts = read_experts(metadata["experts"], f"{where}: metadata.experts")
    experts = tuple(expert for expert in experts if expert.tool == "call_expert")
    if not experts:
        raise ConfigError(
            f"{where}: metadata.experts: nobody stands in; give the row, or"
            " [[toolorchestra.table]], at least one expert of the tool call_expert"
        )
    preferences = metadata.get("preferences")
    return CustomerTask(
        task=_tau2_task(row, where),
        experts=experts,
        preferences=read_preferences(
            defaults.preferences if preferences is None else preferences,
            experts,
            f"{where}: metadata.preferences",
        ),
        budget=read_budget(metadata.get("budget"), where),
    )


def _tau2_task(row: Row, where: str) -> Tau2Task:
    domain, task_id = row.metadata.get("domain"), row.metadata.get("task_id")
    if domain not in DOMAINS:
        raise ConfigError(
            f"{where}: metadata.domain: expected one of {', '.join(DOMAINS)}, found {domain!r:.60}"
        )
    task_set, own = row.metadata.get("task_set"), row.metadata.get("task")
    try:
        if own is not None:
            return task_from_json(str(domain), own, OWN_TASK_SET)
        return task_by_id(str(domain), str(task_id), task_set)
    except KeyError:
        raise ConfigError(
            f"{where}: metadata.task_id: {domain} has no task {task_id!r:.60}"
        ) from None
    except (SourceError, ValueError) as error:
        raise ConfigError(f"{where}: metadata: {error}") from None
