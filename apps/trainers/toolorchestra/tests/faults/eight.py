"""Eight ToolOrchestra episodes for the hooks: a policy as engine, experts as the endpoint."""

from __future__ import annotations

from typing import Any

from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.eight import EPISODES, VICTIM, Eight
from slime_standin.errands import scores
from turnwise.testing import byte_tokenizer
from turnwise.testing.servers import Call, Turn

from apps.trainers.toolorchestra.prompts import asked_tool, read_data

EXPERTS = [
    {"role": "reasoner-1", "tool": "enhance_reasoning", "model": "expert", "write_price": 2},
    {"role": "answer-1", "tool": "answer", "model": "expert", "write_price": 2},
]


def question(number: int) -> str:
    return f"What is {number + 11} * 7?"


async def routes(call: Call) -> Turn:
    """The policy: reasoning first, then the answer, with log-probs that tell tokens apart."""
    tokenizer = byte_tokenizer()
    prompt = tokenizer.decode(call.body["input_ids"])
    text = "answer answer-1" if "It is" in prompt else "enhance_reasoning reasoner-1"
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    return Turn(ids, scores(ids))


def helps(messages: list[dict[str, Any]]) -> str:
    """Every expert."""
    prompt = messages[-1]["content"]
    if "\n\n{" not in prompt:
        return "ready"
    data = read_data(prompt)
    if asked_tool(prompt) == "answer":
        words = data["found"][-1].split() if data["found"] else ["nothing"]
        return rf"\boxed{{{words[-1].rstrip('.')}}}"
    return f"It is {int(data['question'].split()[2]) * 7}."


def options(url: str, deadline_s: float) -> dict[str, Any]:
    model = {"base_url": url, "model": "frozen", "deadline_s": deadline_s, "backoff_s": 0.001}
    return {
        "method": "toolorchestra",
        "prompt": "compact",
        "run_code": False,
        "engine_deadline_s": deadline_s,
        "models": {"expert": model},
        "table": EXPERTS,
        # A breaker would lose the episodes that nothing happened to.
        "breaker": {"failures": 1_000},
    }


def rows() -> list[Any]:
    return [
        Sample(
            prompt=[{"role": "user", "content": question(number)}],
            label=str((number + 11) * 7),
            metadata={"id": f"maths/{number}"},
        )
        for number in range(EPISODES)
    ]


TOOLORCHESTRA = Eight(
    options=options,
    rows=rows,
    policy=lambda: routes,
    says=helps,
    victims=lambda call: question(VICTIM) in call.body["messages"][-1]["content"],
)
