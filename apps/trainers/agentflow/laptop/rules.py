"""Rule-based stand-ins for the frozen models: deterministic, quick, and honest.

| role           | what it does                              | what it can't do             |
| -------------- | ----------------------------------------- | ---------------------------- |
| executor       | hands the question to the named tool      | use the planner's sub-goal   |
| base generator | answers in words (`base_generator`)       | exact large numbers          |
| coder          | writes a real program (`coder`)           | understand words, know facts |
| verifier       | stops when the last step brought a number | see that a number is wrong   |
| final answer   | boxes the last number that a step brought | weigh one against another    |

None of them sees the answer to the question, and none chooses a tool. So whether an episode is
right hangs on the planner: it has to name the tool that suits the question, and after an error the
other one.

They read the prompts of `apps.trainers.agentflow.prompts` by their labels, the full ones and the
compact ones alike. Token counts are estimates, four characters each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.models import Answer, FrozenModel, Message

from apps.trainers.agentflow.laptop.base_generator import rough_answer
from apps.trainers.agentflow.laptop.coder import write_code
from apps.trainers.agentflow.prompts import base, sections

_NUMBER = re.compile(r"-?\d+(?:/\d+)?")
_CHARACTERS_A_TOKEN = 4


class RuleModel:
    """A frozen model whose answer is a function of the labelled parts of the last message."""

    def __init__(self, name: str, rule: Callable[[Mapping[str, str]], str]) -> None:
        self.name = name
        self._rule = rule

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Answer:
        """See `turnwise.models.FrozenModel`; rules need no seed and write less than any limit."""
        prompt = str(messages[-1]["content"])
        text = self._rule(sections.read(prompt))
        return Answer(
            text=text,
            read_tokens=len(prompt) // _CHARACTERS_A_TOKEN,
            written_tokens=len(text) // _CHARACTERS_A_TOKEN,
        )


def rule_models() -> dict[str, FrozenModel]:
    """The helpers by role."""
    rules = {
        "executor": _command,
        "verifier": _verdict,
        "base_generator": _generated,
        "coder": _code,
        "final": _final,
    }
    return {role: RuleModel(f"rules:{role}", rule) for role, rule in rules.items()}


def _command(parts: Mapping[str, str]) -> str:
    query = parts.get(base.QUESTION, "")
    return f"```json\n{json.dumps({'query': query}, ensure_ascii=False)}\n```"


def _generated(parts: Mapping[str, str]) -> str:
    return rough_answer(parts.get(base.TASK, ""))


def _code(parts: Mapping[str, str]) -> str:
    return f"```python\n{write_code(parts.get(base.TASK, ''))}\n```"


def _verdict(parts: Mapping[str, str]) -> str:
    steps = _steps(parts)
    found = bool(steps) and _number(steps[-1]) is not None
    return f"Conclusion: {'STOP' if found else 'CONTINUE'}"


def _final(parts: Mapping[str, str]) -> str:
    numbers = [number for step in _steps(parts) if (number := _number(step)) is not None]
    return rf"The answer is \boxed{{{numbers[-1]}}}." if numbers else r"I found \boxed{nothing}."


def _steps(parts: Mapping[str, str]) -> list[Mapping[str, Any]]:
    steps: list[Mapping[str, Any]] = []
    for line in parts.get(base.STEPS, "").splitlines():
        try:
            step = json.loads(line)
        except ValueError:
            continue
        if isinstance(step, dict):
            steps.append(step)
    return steps


def _number(step: Mapping[str, Any]) -> str | None:
    """The last number that a step brought; None where it failed or brought none."""
    if step.get("failed") is not None:
        return None
    found = _NUMBER.findall(str(step.get("result", "")))
    return found[-1] if found else None
