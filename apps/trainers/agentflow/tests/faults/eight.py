"""Eight AgentFlow episodes at once through slime's hooks, of which one meets a misbehaving engine
or frozen model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from slime.observability import logging_utils  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    generate_and_rm_group,
)
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import make_args, to_train_data
from slime_standin.errands import scores
from turnwise.engine.http import HttpPool
from turnwise.slime import close as close_connections
from turnwise.slime import rollout_log, shared
from turnwise.testing import byte_tokenizer
from turnwise.testing.servers import Call, FakeChat, FakeSGLang, Misbehaviour, Turn

from apps.trainers.agentflow.prompts import sections
from tests.faults.counter import EPISODES, PARAMS, VICTIM, Fault, nothing_left_behind

ANALYSIS = "It asks for a product."
STEP = "Sub-Goal: Multiply.\nTool Name: base_generator"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What slime and its tracker got to see.

    Attributes:
        episodes: The samples of each episode, a list each, in the order of their index.
        numbers: What was logged.
        data: The training data of all samples.
        asked: What the frozen models were asked, in order.
    """

    episodes: list[list[Any]]
    numbers: dict[str, float]
    data: dict[str, list[Any]]
    asked: list[str]


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


async def play(
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    engine: Fault | None = None,
    helper: Fault | None = None,
    **changes: Any,
) -> Outcome:
    """Plays the episodes under slime's arguments `changes`; asserts that nothing is left behind."""
    fault = engine or helper
    deadline_s = fault.deadline_s if fault else 60.0
    monkeypatch.setattr(shared, "HttpPool", partial(HttpPool, backoff_s=0.001, max_backoff_s=0.02))
    with nothing_left_behind():
        async with FakeSGLang(plans) as server, FakeChat(helps) as frozen:
            server.misbehave = _meet(engine, lambda call: call.session == f"session-{VICTIM}")
            frozen.misbehave = _meet(helper, _speaks_of(question(VICTIM)))
            model = {"base_url": f"{frozen.url}/v1", "model": "frozen", "deadline_s": deadline_s}
            options = {
                "method": "agentflow",
                "tools": ["base_generator"],
                "prompt": "compact",
                "engine_deadline_s": deadline_s,
                "models": {"base": {**model, "backoff_s": 0.001}},
            }
            args = make_args(
                hf_checkpoint=checkpoint,
                turnwise=options,
                **changes,
                sglang_router_port=server.port,
                n_samples_per_prompt=EPISODES,
            )
            episodes = await generate_and_rm_group(args, _rows(), PARAMS)
            await close_connections()
            asked = [str(call.body["messages"][-1]["content"]) for call in frozen.calls]
        data = to_train_data(args, [episodes])
        flat = [sample for episode in episodes for sample in episode]
        assert rollout_log(0, args, flat, {}, 1.0) is True
    return Outcome(episodes, logging_utils.logged[-1], data, asked)


def _rows() -> list[Any]:
    rows = [
        Sample(
            prompt=[{"role": "user", "content": question(number)}],
            label=str((number + 11) * 7),
            metadata={"id": f"maths/{number}"},
        )
        for number in range(EPISODES)
    ]
    for number, row in enumerate(rows):
        row.index, row.group_index, row.session_id = number, 0, f"session-{number}"
    return rows


def _speaks_of(words: str) -> Callable[[Call], bool]:
    return lambda call: words in call.body["messages"][-1]["content"]


def _meet(
    fault: Fault | None, concerns: Callable[[Call], bool]
) -> Callable[[Call], Misbehaviour | None]:
    met = [0]

    def misbehave(call: Call) -> Misbehaviour | None:
        if fault is None or not concerns(call):
            return None
        number, met[0] = met[0], met[0] + 1
        return fault.what() if fault.at(number) else None

    return misbehave
