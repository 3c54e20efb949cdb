"""Demonstrations for the warm start: synthetic customers, served by a scripted expert.

1. A case is a customer with one order, as small tables of its own. Names of people and products,
   with their options, come from the database of tau-bench; every number (order, customer, item,
   payment method, zip code, e-mail) is drawn. No order and no customer of the database is used,
   so none of a real task is: what identifies a record of it (a key, an e-mail address, a name with
   its zip code) is drawn again.
2. The task is one of the main job's two kinds, worded as the real ones are.
3. The expert's turns go through the episode loop that training and evaluation use, with upstream's
   tools on the case's tables. What is recorded is what that loop records.
4. A stated share of demonstrations holds one mistake of a kind that agents make (`Mistake`), so
   that the policy has habits to lose and samples of one task differ in reward. Every demonstration
   is checked: the reward is 0 with a mistake and 1 without.

Case i of a seed depends on the seed and i alone.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from taubench import Action, Environment, Reward, Task
from taubench.source import domain_files
from taubench.tables import Snapshot
from taubench.users import compact_user
from taubench.users.script import write_script
from turnwise.rollout import derive_seed
from turnwise.users import UserReply

Mistake = Literal[
    "write forgotten",
    "wrong reason",
    "item forgotten",
    "wrong item",
    "item too many",
    "wrong tool",
    "order number without #",
]
REASONS = ("no longer needed", "ordered by mistake")
RETURN_SHARE = 0.6
GIFT_CARD_SHARE = 0.1
TWIN_SHARE = 0.05
_MAX_ITEMS = 5
_PAYMENTS = ("credit_card", "paypal", "gift_card")

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A customer with one order and one wish, and what the expert says.

    Attributes:
        task: As the environment knows it; its calls are the right ones.
        profile: The customer's record.
        tables: The database of the case: one order, one customer, all products.
        mistake: What the expert does wrong; None if nothing.
        turns: The expert's turns as text, in order.
    """

    task: Task
    profile: Record
    tables: Mapping[str, dict[str, Record]]
    mistake: Mistake | None
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Pools:
    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    products: tuple[Record, ...]
    taken: frozenset[str]


@cache
def _pools() -> _Pools:
    tables = domain_files("retail").tables
    names = [user["name"] for user in tables["users"].values()]
    payments = {method for user in tables["users"].values() for method in user["payment_methods"]}
    items = {item for product in tables["products"].values() for item in product["variants"]}
    contacts = {
        contact
        for user in tables["users"].values()
        for contact in (user["email"], f"{_full_name(user)} {user['address']['zip']}")
    }
    return _Pools(
        first_names=tuple(sorted({name["first_name"] for name in names})),
        last_names=tuple(sorted({name["last_name"] for name in names})),
        products=tuple(sorted(tables["products"].values(), key=lambda product: product["name"])),
        taken=frozenset({*tables["orders"], *tables["users"], *payments, *items, *contacts}),
    )


def make_case(seed: int, index: int, *, mistake_share: float) -> Case:
    """Case `index` of a seed; with probability `mistake_share` the expert makes a mistake."""
    rng = random.Random(derive_seed(seed, "case", index))
    returning = rng.random() < RETURN_SHARE
    profile, user_id, by_zip = _customer(rng)
    order = _order(rng, user_id, profile, delivered=returning)
    profile["orders"] = [order["order_id"]]
    contact = (
        f"zip code is {profile['address']['zip']}" if by_zip else f"email is {profile['email']}"
    )
    action, wish = _return(rng, order, profile) if returning else _cancellation(rng, order)
    task = Task(
        domain="retail",
        split=f"synthetic-{seed}",
        index=index,
        user_id=user_id,
        instruction=f"Your name is {_full_name(profile)} and your {contact}. {wish}",
        actions=(action,),
    )
    products = domain_files("retail").tables["products"]
    tables = {
        "orders": {order["order_id"]: order},
        "products": products,
        "users": {user_id: profile},
    }
    lookup = _lookup(profile, by_zip)
    mistake = None
    if rng.random() < mistake_share:
        mistake = rng.choice(_possible_mistakes(action, order))
    turns = _turns(rng, lookup, action, order, mistake)
    return Case(task, profile, tables, mistake, turns)


def _full_name(profile: Mapping[str, Any]) -> str:
    return f"{profile['name']['first_name']} {profile['name']['last_name']}"


def _digits(rng: random.Random, count: int, pattern: str = "{}", *, least: int = 0) -> str:
    """`pattern` with a random number of that many digits, at least `least`.

    Never what identifies a record of the database.
    """
    while True:
        key = pattern.format(f"{rng.randrange(least, 10**count):0{count}}")
        if key not in _pools().taken:
            return key


def _customer(rng: random.Random) -> tuple[Record, str, bool]:
    """A customer's record and key, and whether the zip code identifies it (else the e-mail)."""
    pools = _pools()
    first, last = rng.choice(pools.first_names), rng.choice(pools.last_names)
    base = f"{first}_{last}".lower()
    payments: dict[str, Record] = {}
    for kind in rng.sample(_PAYMENTS, rng.choice((1, 1, 2))):
        key = _digits(rng, 7, kind + "_{}")
        payments[key] = {"source": kind, "id": key}
        if kind == "gift_card":
            payments[key]["balance"] = rng.randrange(100)
    profile = {
        "name": {"first_name": first, "last_name": last},
        "address": {"zip": _digits(rng, 5, f"{first} {last} {{}}")[-5:]},
        "email": _digits(rng, 4, f"{base.replace('_', '.')}{{}}@example.com", least=1000),
        "payment_methods": payments,
    }
    return profile, _digits(rng, 4, base + "_{}"), rng.random() < 0.5


def _order(rng: random.Random, user_id: str, profile: Record, *, delivered: bool) -> Record:
    products = rng.sample(_pools().products, rng.randint(1, _MAX_ITEMS))
    if len(products) > 1 and rng.random() < TWIN_SHARE:
        products[-1] = products[0]
    items: list[Record] = []
    for product in products:
        used = [item["options"] for item in items]
        variants = [v for v in product["variants"].values() if v["options"] not in used]
        variant = rng.choice(variants or list(product["variants"].values()))
        items.append(
            {
                "name": product["name"],
                "product_id": product["product_id"],
                "item_id": _digits(rng, 10),
                "price": variant["price"],
                "options": variant["options"],
            }
        )
    rng.shuffle(items)
    total = round(sum(item["price"] for item in items), 2)
    method = rng.choice(list(profile["payment_methods"]))
    payment = {"transaction_type": "payment", "amount": total, "payment_method_id": method}
    return {
        "order_id": _digits(rng, 7, "#W{}"),
        "user_id": user_id,
        "items": items,
        "fulfillments": [],
        "status": "delivered" if delivered else "pending",
        "payment_history": [payment],
    }


def _cancellation(rng: random.Random, order: Record) -> tuple[Action, str]:
    reason = rng.choice(REASONS)
    arguments = {"order_id": order["order_id"], "reason": reason}
    return (
        Action("cancel_pending_order", arguments),
        f"Cancel order {order['order_id']} because {reason}. ",
    )


def _return(rng: random.Random, order: Record, profile: Record) -> tuple[Action, str]:
    items = order["items"]
    returned = rng.sample(items, rng.randint(1, min(4, len(items))))
    method = order["payment_history"][0]["payment_method_id"]
    cards = [key for key in profile["payment_methods"] if key.startswith("gift_card")]
    if cards and rng.random() < GIFT_CARD_SHARE:
        method = cards[0]
    names = [item["name"] for item in items]
    spoken = [
        item["name"] if names.count(item["name"]) == 1 else f"{item['name']} {item['options']}"
        for item in returned
    ]
    arguments = {
        "order_id": order["order_id"],
        "item_ids": [item["item_id"] for item in returned],
        "payment_method_id": method,
    }
    return (
        Action("return_delivered_order_items", arguments),
        f"Return {order['order_id']} via {method}: {'; '.join(spoken)}; ",
    )


def _lookup(profile: Record, by_zip: bool) -> Action:
    if not by_zip:
        return Action("find_user_id_by_email", {"email": profile["email"]})
    name = profile["name"]
    return Action("find_user_id_by_name_zip", {**name, "zip": profile["address"]["zip"]})


def _possible_mistakes(action: Action, order: Record) -> tuple[Mistake, ...]:
    anywhere: tuple[Mistake, ...] = ("write forgotten", "wrong tool", "order number without #")
    if action.name == "cancel_pending_order":
        return (*anywhere, "wrong reason")
    returned, ordered = len(action.kwargs["item_ids"]), len(order["items"])
    on_items: tuple[Mistake, ...] = ()
    if returned > 1:
        on_items += ("item forgotten",)
    if returned < ordered:
        on_items += ("wrong item", "item too many")
    return (*anywhere, *on_items)


def _turns(
    rng: random.Random, lookup: Action, action: Action, order: Record, mistake: Mistake | None
) -> tuple[str, ...]:
    details = Action("get_order_details", {"order_id": order["order_id"]})
    written = [_with_mistake(rng, action, order, mistake)]
    if mistake == "write forgotten":
        written = []
    return (*(_call(each) for each in (lookup, details, *written)), "Done.")


def _with_mistake(
    rng: random.Random, action: Action, order: Record, mistake: Mistake | None
) -> Action:
    arguments = copy.deepcopy(dict(action.kwargs))
    ids: list[str] = arguments.get("item_ids", [])
    others = [item["item_id"] for item in order["items"] if item["item_id"] not in ids]
    if mistake == "wrong tool":
        return _other_tool(rng, action, order)
    if mistake == "order number without #":
        arguments["order_id"] = order["order_id"].removeprefix("#")
    elif mistake == "wrong reason":
        arguments["reason"] = REASONS[1 - REASONS.index(arguments["reason"])]
    elif mistake == "item forgotten":
        ids.pop(rng.randrange(len(ids)))
    elif mistake == "wrong item":
        ids[rng.randrange(len(ids))] = rng.choice(others)
    elif mistake == "item too many":
        ids.insert(rng.randint(0, len(ids)), rng.choice(others))
    return Action(action.name, arguments)


def _other_tool(rng: random.Random, action: Action, order: Record) -> Action:
    if action.name != "cancel_pending_order":
        reason = rng.choice(REASONS)
        return Action("cancel_pending_order", {"order_id": order["order_id"], "reason": reason})
    arguments = {
        "order_id": order["order_id"],
        "item_ids": [item["item_id"] for item in order["items"]],
        "payment_method_id": order["payment_history"][0]["payment_method_id"],
    }
    return Action("return_delivered_order_items", arguments)


def _call(action: Action) -> str:
    body = json.dumps({"name": action.name, "arguments": dict(action.kwargs)})
    return f"<tool_call>\n{body}\n</tool_call>"


class CaseEnvironment(Environment):
    """The environment of a case: upstream's tools on the case's own tables."""

    __slots__ = ("case",)

    def __init__(self, case: Case) -> None:
        self.case = case
        self.task = case.task
        self._snapshot = Snapshot(replace(domain_files("retail"), tables=case.tables))
        self.reset()

    def score(self) -> Reward:
        """As for a real task, with the right calls replayed on the case's tables."""
        truth = CaseEnvironment(self.case)
        for action in self.task.actions:
            truth.step(action)
        right = self.changes() == truth.changes()
        return Reward(float(right), right, None, {})

    def diff(self) -> tuple[()]:
        return ()


class CaseUser:
    """The compact view's customer, for a person who is in no database."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._user = compact_user()

    @property
    def name(self) -> str:
        return self._user.name

    def opening(self) -> str:
        """Starts the conversation; the customer's first words."""
        task = self._case.task
        return self._user.start(write_script(task.user_id, task.instruction, self._case.profile))

    async def reset(self, task: Task) -> str:
        return self.opening()

    async def reply(self, agent_text: object) -> UserReply:
        return await self._user.reply(agent_text)
