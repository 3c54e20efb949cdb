"""A method of one's own in one file: an agent at an order desk, with its tools and its reward.

./pants run libs/turnwise:train -- --method examples.order_desk:OrderDesk
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise import (
    AnyPolicy,
    Conversation,
    Ending,
    Episode,
    Limit,
    Method,
    MethodOptions,
    Rollout,
    Row,
    Turn,
)

SHOP = "You help customers of an online shop. Look up the order, then make the change."
REASONS = ("no longer needed", "ordered by mistake")
NEEDS = {"get_order_details": ["order_id"], "cancel_pending_order": ["order_id", "reason"]}


def schema(name: str) -> dict[str, Any]:
    properties = {key: {"type": "string"} for key in NEEDS[name]}
    parameters = {"type": "object", "properties": properties, "required": NEEDS[name]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@dataclass
class Wish:
    order: str
    reason: str


class OrderDesk(Method[MethodOptions, Wish]):
    """Trains an agent to cancel the order that a customer names, for the customer's reason."""

    shipped = Path(__file__).parents[1] / "apps/trainers/tau/policy"
    preset = Path(__file__).with_suffix(".toml")

    def rows(self, split: str) -> list[Row]:
        draw = random.Random(split)
        wishes = [(f"#W{draw.randrange(10**6, 10**7)}", draw.choice(REASONS)) for _ in range(48)]
        return [Row(prompt=order, label=why, id=f"{split}/{order}") for order, why in wishes]

    def task(self, row: Row) -> Wish:
        return Wish(str(row.prompt), str(row.label))

    def tools(self) -> list[dict[str, Any]]:
        return [schema(name) for name in NEEDS]

    async def run(self, rollout: Rollout[Wish], policy: AnyPolicy) -> Episode:
        wish, cancelled = rollout.task, None
        opening = f"Cancel order {wish.order} because {wish.reason}."
        messages = [{"role": "system", "content": SHOP}, {"role": "user", "content": opening}]
        async with Conversation(policy, rollout, tools=self.tools()) as talk:
            for _ in range(4):
                turn = await talk.ask(messages)
                if turn.ending is not None:  # out of tokens or context, or aborted
                    return talk.episode(turn.ending, 0.0)
                assert isinstance(turn, Turn)
                if not turn.calls:
                    return talk.episode(Ending.finished(), float(cancelled == wish))
                call = turn.calls[0]
                answer = {"order_id": wish.order, "status": "pending"}
                if call.name == "cancel_pending_order" and isinstance(call.arguments, dict):
                    cancelled = Wish(*(str(call.arguments.get(key)) for key in NEEDS[call.name]))
                    answer["status"] = "cancelled"
                messages = [{"role": "tool", "name": call.name, "content": json.dumps(answer)}]
            return talk.episode(Ending.stopped(Limit.TURNS), 0.0)
