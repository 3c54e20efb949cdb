"""Demonstrations for the strategy `few-shot`, made by replaying ground truth.

Each comes from a train task with one write that works: the user says what the instruction
says, the agent finds the account, the order and what else the write needs, names the change, hears
a yes and makes it. Results are the environment's own, shortened. The users are in no dev or
test task and in neither part of the main job's tasks that is kept from training; what is trained
on should leave out `demonstrated(domain)`.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from taubench.environment import Environment
from taubench.prompts import PromptView, prompt_view
from taubench.source import SPLITS, check_split
from taubench.splits import family_splits
from taubench.task import Action, Task
from taubench.tasks import load_tasks, user_profile
from taubench.users.script import write_script

WRITES = (
    "cancel_pending_order",
    "return_delivered_order_items",
    "exchange_delivered_order_items",
)
"""One demonstration each, as far as the view has the tool."""
_ITEM = ("name", "item_id", "product_id")


@cache
def demonstrated(domain: str) -> tuple[Task, ...]:
    """The tasks that demonstrations are made of, one for each of `WRITES`.

    Raises:
        ValueError: the domain is unknown or has no train tasks.
        SourceError: tau-trait is missing.
    """
    check_split(domain)
    if "train" not in SPLITS[domain]:
        raise ValueError(
            f"few-shot: {domain} has no train tasks to make demonstrations of; use another strategy"
        )
    parts = family_splits()
    kept = [*parts.tune, *parts.held_out]
    for split in SPLITS[domain]:
        kept += () if split == "train" else load_tasks(domain, split)
    users = {task.user_id for task in kept}
    return tuple(
        next(
            task
            for task in load_tasks(domain, "train")
            if [action.name for action in task.actions] == [write]
            and task.user_id not in users
            and not task.flags.gt_write_fails
        )
        for write in WRITES
    )


def demonstrations(domain: str, view: PromptView) -> tuple[str, ...]:
    """Conversations as text, of the writes in the view's tools. Raises as `demonstrated`."""
    tools = {tool["function"]["name"] for tool in view.tools(domain)}
    return tuple(_play(task) for task in demonstrated(domain) if task.actions[0].name in tools)


def _play(task: Task) -> str:
    profile = user_profile(task)
    script = write_script(task.user_id, task.instruction, profile)
    environment = Environment(task)
    lines = [
        f"Customer: {' '.join(script.requests)}",
        "Agent: Gladly. Please give me the e-mail address of your account, or your name and zip "
        "code.",
    ]

    def call(action: Action) -> None:
        result = environment.step(action)
        arguments = json.dumps(dict(action.kwargs), ensure_ascii=False)
        lines.extend(
            [
                f"Agent calls {action.name} with {arguments}",
                f"Result: {_short(action.name, result.observation)}",
            ]
        )

    words, find = _account(profile, script.facts)
    lines.append(f"Customer: {words}")
    call(find)
    (write,) = task.actions
    call(Action("get_order_details", {"order_id": write.kwargs["order_id"]}))
    if "new_item_ids" in write.kwargs:
        order = environment.step(
            Action("get_order_details", {"order_id": write.kwargs["order_id"]})
        )
        for product in _products(order.observation, write.kwargs["item_ids"]):
            call(Action("get_product_details", {"product_id": product}))
    named = ", ".join(f"{key.replace('_', ' ')} {_words(v)}" for key, v in write.kwargs.items())
    lines.append(f"Agent: I will {write.name.replace('_', ' ')}: {named}. Is that right (yes/no)?")
    lines.append("Customer: Yes.")
    call(write)
    lines.append("Agent: It is done. Is there anything else that I can do for you?")
    return "\n".join(lines)


def _account(profile: dict[str, Any], facts: Any) -> tuple[str, Action]:
    """How the user says who they are, and the call that finds them."""
    if "email" in facts:
        email = profile["email"]
        return f"It is {email}.", Action("find_user_id_by_email", {"email": email})
    first, last = profile["name"]["first_name"], profile["name"]["last_name"]
    zip_code = profile["address"]["zip"]
    return (
        f"{first} {last}, {zip_code}.",
        Action(
            "find_user_id_by_name_zip", {"first_name": first, "last_name": last, "zip": zip_code}
        ),
    )


def _words(value: Any) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


def _products(order: str, item_ids: list[str]) -> list[str]:
    """The products of these items of an order, each once."""
    items = {item["item_id"]: item["product_id"] for item in json.loads(order)["items"]}
    return list(dict.fromkeys(items[item_id] for item_id in item_ids))


def _short(tool: str, result: str) -> str:
    """A result with what the next call needs of it."""
    if tool == "get_order_details":
        order = json.loads(result)
        shown = {
            "status": order["status"],
            "payment_method_id": order["payment_history"][0]["payment_method_id"],
            "items": [{key: item[key] for key in _ITEM} for item in order["items"]],
        }
    elif tool == "get_product_details":
        product = json.loads(result)
        available = {
            number: ", ".join(variant["options"].values())
            for number, variant in product["variants"].items()
            if variant["available"]
        }
        shown = {"name": product["name"], "available": available}
    else:
        return prompt_view("compact").observation(tool, result)
    return json.dumps(shown, ensure_ascii=False)
