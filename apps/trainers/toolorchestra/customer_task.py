"""A customer of τ²-bench as a task, and what policy and experts are told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taubench.tau2 import Tau2Task, system_prompt, tool_schemas

from apps.trainers.toolorchestra.prompts import HANDING_OVER, call_expert
from apps.trainers.toolorchestra.tables import Budget, Expert, Preferences

TRANSFER = "transfer_to_human_agents"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerTask:
    """A customer of τ²-bench, with the experts of the row and what its owner prefers."""

    task: Tau2Task
    experts: tuple[Expert, ...]
    preferences: Preferences
    budget: Budget | None = None


def domain_tools(task: Tau2Task, *, transfer: bool) -> list[dict[str, Any]]:
    """The tools of a task's domain as policy and experts have them."""
    schemas = tool_schemas(task.domain, task.task_set)
    return [one for one in schemas if transfer or one["function"]["name"] != TRANSFER]


def customer_tools(task: CustomerTask, *, transfer: bool) -> list[dict[str, Any]]:
    """What the policy is given: the domain's tools and `call_expert`."""
    return [*domain_tools(task.task, transfer=transfer), call_expert(task.experts)]


def customer_system(task: CustomerTask) -> str:
    """The policy's system prompt."""
    wishes = ", ".join(f"{name} {weight:g}" for name, weight in task.preferences.items() if weight)
    return f"{system_prompt(task.task)}\n\n{HANDING_OVER.format(wishes=wishes)}"
