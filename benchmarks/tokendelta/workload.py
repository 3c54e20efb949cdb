"""A conversation like those of tau-bench: a long policy, 16 tools, and turns that alternate between
calls and talk. All text is made up here from a seed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import miniatures
from qwen_vocabulary import qwen_tokenizer

VERBS = "cancel change refund book exchange return verify update list send look up".split()
NOUNS = (
    "order reservation flight payment passenger baggage certificate address product item user"
    " account itinerary insurance cabin voucher exchange policy agent request"
).split()


@dataclass(frozen=True)
class Workload:
    """The opening messages, the tools, and (sampled ids, log-probs, message, answer) by turn."""

    tokenizer: Any
    opening: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    turns: list[tuple[list[int], list[float], dict[str, Any], dict[str, Any]]]


def template() -> str:
    """Qwen3-Instruct-2507's own template where the shared data is, else ours with the same form."""
    folder = os.environ.get("TURNWISE_SHARED_DATA", "")
    path = Path(folder) / "templates" / "qwen3-instruct-2507.jinja"
    return path.read_text(encoding="utf-8") if path.is_file() else miniatures.GROUPED_TOOLS


def _sentence(rnd: Random) -> str:
    words = [rnd.choice(VERBS), "the", rnd.choice(NOUNS), "of the", rnd.choice(NOUNS)]
    more = ["only if the", rnd.choice(NOUNS), "was", rnd.choice(VERBS) + "ed", "within", "24 hours"]
    return " ".join([*words, *more]).capitalize() + "."


def _tools(rnd: Random) -> list[dict[str, Any]]:
    tools = []
    for number in range(16):
        name = f"{rnd.choice(VERBS[:9])}_{rnd.choice(NOUNS)}_{number}"
        properties = {
            f"{noun}_id": {"type": "string", "description": _sentence(rnd)}
            for noun in rnd.sample(NOUNS, 4)
        }
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": name, "description": _sentence(rnd), "parameters": parameters}
        tools.append({"type": "function", "function": function})
    return tools


def workload(turns: int, seed: int = 1) -> Workload:
    """A conversation of so many sampled turns, its prompt of about 6,000 tokens."""
    rnd = Random(seed)
    tokenizer = qwen_tokenizer(template())
    if tokenizer is None:
        raise RuntimeError("dashscope is not installed: there is no Qwen vocabulary")
    tools = _tools(rnd)
    policy = "# Policy\n\n" + "\n\n".join(
        f"## {rnd.choice(NOUNS).capitalize()}\n\n" + " ".join(_sentence(rnd) for _ in range(12))
        for _ in range(17)
    )
    opening = [
        {"role": "system", "content": policy},
        {"role": "user", "content": "Hi, I need help with my reservation."},
    ]
    rows = []
    for number in range(turns):
        if number % 2 == 0:
            arguments = {"reservation_id": f"R{rnd.randrange(10**5)}", "user_id": "anna_k_88"}
            call = json.dumps({"name": "look_up_reservation", "arguments": arguments})
            text = f"<tool_call>\n{call}\n</tool_call>"
            items = [
                {"item_id": str(rnd.randrange(10**9)), "price": rnd.random() * 500, "state": "sent"}
                for _ in range(rnd.randint(2, 6))
            ]
            answer = {"role": "tool", "content": json.dumps({"items": items, "ok": True})}
        else:
            text = " ".join(_sentence(rnd) for _ in range(3))
            answer = {"role": "user", "content": " ".join(_sentence(rnd) for _ in range(2))}
        ids = tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
        scores = [-rnd.random() for _ in ids]
        rows.append((ids, scores, {"role": "assistant", "content": text}, answer))
    return Workload(tokenizer, opening, tools, rows)
