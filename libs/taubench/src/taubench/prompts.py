"""What a policy is shown of a tau-bench task.

A view decides the system prompt, the tools that the chat template renders, and how a tool's
result is worded. Warm start, training and evaluation take the same view by name.

| view      | system prompt  | tools                               | results                       |
|-----------|----------------|-------------------------------------|-------------------------------|
| `full`    | the wiki       | all schemas of the domain           | as they are                   |
| `compact` | four sentences | five schemas without descriptions   | orders shortened (see below)  |

`full` is upstream's task. `compact` is for policies of a few million parameters and retail alone:
it holds what cancelling an order and returning items need, so a score with it is not comparable
with one of the full task.

Orders in the compact view: `get_order_details` shows status, the payment method and
[name, item id] of each item, with the item's options where the order holds its name twice; a
write shows the order's id and its new status. Other results are cut after 2,000 characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

from taubench.source import check_split
from taubench.tasks import tool_schemas, wiki

COMPACT_TOOLS = (
    "find_user_id_by_email",
    "find_user_id_by_name_zip",
    "get_order_details",
    "cancel_pending_order",
    "return_delivered_order_items",
)
MAX_COMPACT_CHARACTERS = 2_000

_COMPACT_SYSTEM = (
    "You help customers of an online shop. Look up the customer and the order, then make the "
    "change. A pending order can be cancelled; the reason is no longer needed or ordered by "
    "mistake. Items of a delivered order can be returned; the refund goes to the payment method "
    "that the customer names."
)


class PromptView(Protocol):
    """How a domain is shown to a policy. Stateless."""

    @property
    def name(self) -> str: ...

    def system(self, domain: str) -> str:
        """The system prompt. Raises ValueError if the view does not show this domain."""
        ...

    def tools(self, domain: str) -> list[dict[str, Any]]:
        """OpenAI function schemas for the chat template, read only. Raises as `system` does."""
        ...

    def observation(self, tool: str, text: str) -> str:
        """The result of a call of `tool` as the policy reads it. Never raises."""
        ...


class FullView:
    """Upstream's policy document, tools and results."""

    name = "full"

    def system(self, domain: str) -> str:
        return wiki(domain)

    def tools(self, domain: str) -> list[dict[str, Any]]:
        return tool_schemas(domain)

    def observation(self, tool: str, text: str) -> str:
        return text


class CompactView:
    """What cancelling and returning need; see the module's docstring."""

    name = "compact"

    def system(self, domain: str) -> str:
        _check_retail(domain)
        return _COMPACT_SYSTEM

    def tools(self, domain: str) -> list[dict[str, Any]]:
        _check_retail(domain)
        return list(_compact_tools(domain))

    def observation(self, tool: str, text: str) -> str:
        order = _order(text)
        if order is None:
            return text[:MAX_COMPACT_CHARACTERS]
        if tool != "get_order_details":
            return _dumps({"order_id": order["order_id"], "status": order["status"]})
        return _dumps(
            {
                "status": order["status"],
                "payment_method_id": order["payment_history"][0]["payment_method_id"],
                "items": _items(order["items"]),
            }
        )


_VIEWS: dict[str, PromptView] = {view.name: view for view in (FullView(), CompactView())}


def prompt_view(name: str) -> PromptView:
    """The view of that name. Raises ValueError naming those that exist."""
    if name not in _VIEWS:
        raise ValueError(f"unknown prompt {name!r}: there are {', '.join(_VIEWS)}")
    return _VIEWS[name]


def _check_retail(domain: str) -> None:
    check_split(domain)
    if domain != "retail":
        raise ValueError(f"the compact prompt shows retail alone, not {domain}: use full")


@cache
def _compact_tools(domain: str) -> tuple[dict[str, Any], ...]:
    schemas = {schema["function"]["name"]: schema for schema in tool_schemas(domain)}
    return tuple(_without_descriptions(schemas[name]) for name in COMPACT_TOOLS)


def _without_descriptions(schema: Mapping[str, Any]) -> dict[str, Any]:
    function = schema["function"]
    parameters = function["parameters"]
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "parameters": {
                "type": "object",
                "properties": {
                    name: _type(spec) for name, spec in parameters["properties"].items()
                },
                "required": list(parameters["required"]),
            },
        },
    }


def _type(spec: Mapping[str, Any]) -> dict[str, Any]:
    if "items" in spec:
        return {"type": spec["type"], "items": _type(spec["items"])}
    return {"type": spec["type"]}


def _order(text: str) -> dict[str, Any] | None:
    """The order record that a tool returned, None if the text is anything else."""
    if not text.startswith("{"):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    wanted = ("order_id", "status", "items", "payment_history")
    complete = isinstance(record, dict) and all(record.get(key) for key in wanted)
    return record if complete else None


def _items(items: list[dict[str, Any]]) -> list[list[str]]:
    names = [item["name"] for item in items]
    shown = []
    for item in items:
        pair = [item["name"], item["item_id"]]
        if names.count(item["name"]) > 1:
            pair.append(", ".join(item["options"].values()))
        shown.append(pair)
    return shown


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
