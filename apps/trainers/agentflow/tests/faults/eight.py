"""Eight AgentFlow episodes for the hooks: a planner as engine, frozen models as the endpoint."""

from __future__ import annotations

import json
from typing import Any

from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.eight import EPISODES, VICTIM, Eight
from slime_standin.errands import scores
from turnwise.testing import byte_tokenizer
from turnwise.testing.servers import Call, Turn

from apps.trainers.agentflow.prompts import sections

ANALYSIS = "It asks for a product."
STEP = "Sub-Goal: Multiply.\nTool Name: base_generator"


def question(number: int) -> str:
    return f"What is {number + 11} * 7?"


async def plans(call: Call) -> Turn:
    """The planner: an analysis, then one step, with log-probs that tell tokens apart."""
    tokenizer = byte_tokenizer()
    prompt = tokenizer.decode(call.body["input_ids"])
    text = STEP if "Next step." in prompt else ANALYSIS
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    return Turn(ids, scores(ids))


def helps(messages: list[dict[str, Any]]) -> str:
    """Every frozen model."""
    prompt = messages[-1]["content"]
    parts = sections.read(prompt)
    if prompt.startswith("Arguments"):
        return json.dumps({"query": parts["Question"]})
    if prompt.startswith("Conclusion"):
        return "Conclusion: STOP"
    if prompt.startswith("Answer"):
        last = json.loads(parts["Steps so far"].splitlines()[-1])
        return rf"\boxed{{{last['result']}}}"
    if prompt.startswith("Solve"):
        return str(int(parts["Task"].split()[2]) * 7)
    return "ready"


def options(url: str, deadline_s: float) -> dict[str, Any]:
    model = {"base_url": url, "model": "frozen", "deadline_s": deadline_s, "backoff_s": 0.001}
    return {
        "method": "agentflow",
        "tools": ["base_generator"],
        "prompt": "compact",
        "engine_deadline_s": deadline_s,
        "models": {"base": model},
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


AGENTFLOW = Eight(
    options=options,
    rows=rows,
    policy=lambda: plans,
    says=helps,
    victims=lambda call: question(VICTIM) in call.body["messages"][-1]["content"],
)
