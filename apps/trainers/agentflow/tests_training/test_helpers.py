"""The rule-based helpers in the real loop: none sees the truth, and the tool decides."""

import asyncio
import inspect
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tokendelta
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sandbox import Result, Sandbox, SandboxBroken, SandboxUnavailable, Tier
from turnwise.command import PreflightError
from turnwise.engine import Completion, SamplingParams
from turnwise.episode import Episode
from turnwise.policy import Policy
from turnwise.rollout import Rollout

from apps.trainers.agentflow import method as method_module
from apps.trainers.agentflow.laptop.baselines import CEILING, FixedPlanner
from apps.trainers.agentflow.laptop.method import laptop_method
from apps.trainers.agentflow.laptop.problems import make_problems
from apps.trainers.agentflow.laptop.rules import RuleModel, rule_models
from apps.trainers.agentflow.laptop.tokenizer import train_tokenizer
from apps.trainers.agentflow.prompts import base, sections
from apps.trainers.agentflow.question import Question

TOKENIZER = train_tokenizer(["user\nassistant\nTool Name: python_coder"], vocab_size=300)
PROFILE = tokendelta.Profile.from_tokenizer(TOKENIZER)
LARGE = Question("Compute 4837 * 2931 - 806.", str(4837 * 2931 - 806))
STORY = Question("Anna has 9 apples and gives 4 of them to Ben. How many are left?", "5")
FACT = Question("How many sides does a hexagon have?", "6")


class InTurn:
    """Several engines, one a turn; the last goes on."""

    def __init__(self, engines: list[FixedPlanner]) -> None:
        self._engines = engines

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        engine = self._engines.pop(0) if len(self._engines) > 1 else self._engines[0]
        return await engine.generate(prompt_ids, params, session_id=session_id)

    async def release(self, session_id: str) -> None:
        return None

    async def close(self) -> None:
        return None


def rollout(question: Question) -> Rollout[Question]:
    return Rollout(task=question, task_id="q", rollout_id="r", group_id="g", seed=0)


async def play(question: Question, tools: Sequence[str], prompt: str = "compact") -> Episode:
    """The question with the tool of each step given; the last goes on."""
    async with laptop_method(prompt=prompt) as method:
        labels = method.helpers.prompts.labels
        policy = Policy(
            engine=InTurn([FixedPlanner(tool, labels, TOKENIZER) for tool in (tools[0], *tools)]),
            profile=PROFILE,
            max_context_tokens=8_192,
        )
        return await method.run(rollout(question), policy)


@pytest.mark.parametrize("prompt", ["compact", "full"])
@pytest.mark.parametrize(
    ("question", "right", "wrong"),
    [
        (LARGE, "python_coder", "base_generator"),
        (STORY, "base_generator", "python_coder"),
    ],
)
def test_which_tool_is_named_decides(
    question: Question, right: str, wrong: str, prompt: str
) -> None:
    for tool, score in ((right, 1.0), (wrong, 0.0)):
        episode = asyncio.run(play(question, [tool], prompt))
        assert (episode.ending.label, episode.score) == ("finished", score)
        assert episode.metrics[f"tool/{tool}"] == 1.0


def test_after_an_error_another_step_is_taken_and_another_tool_helps() -> None:
    episode = asyncio.run(play(FACT, ["python_coder", "base_generator"]))
    assert episode.metrics["tool_failed/error"] == 1.0
    assert "NameError" in json.dumps(list(episode.transcript))
    assert (episode.ending.label, episode.score) == ("finished", 1.0)


def test_the_same_error_until_the_steps_are_used_up_is_a_wrong_answer() -> None:
    episode = asyncio.run(play(FACT, ["python_coder"]))
    assert (episode.ending.label, episode.score) == ("stopped:turns", 0.0)
    assert episode.metrics["tool_failed/error"] == 3.0


def test_no_helper_is_handed_anything_but_the_prompt() -> None:
    assert list(inspect.signature(RuleModel.ask).parameters) == [
        "self", "messages", "max_tokens", "seed",
    ]  # fmt: skip

    async def asked() -> list[str]:
        seen: list[str] = []
        secret = Question("Compute 1 * 1 + 1.", "987654321")
        async with laptop_method() as method:
            helpers = method.helpers
            for model in (helpers.executor, helpers.verifier, helpers.final):
                ask = model.ask

                async def spy(messages: object, ask: object = ask, **more: object) -> object:
                    seen.append(str(messages))
                    return await ask(messages, **more)  # type: ignore[operator]

                model.ask = spy  # type: ignore[method-assign, assignment]
            policy = Policy(
                engine=FixedPlanner("python_coder", helpers.prompts.labels, TOKENIZER),
                profile=PROFILE,
                max_context_tokens=4_096,
            )
            await method.run(rollout(secret), policy)
        return seen

    seen = asyncio.run(asked())
    assert len(seen) == 3 and not any("987654321" in text for text in seen)


def test_the_verifier_stops_at_a_number_and_not_at_an_error_or_words() -> None:
    def verdict(*steps: dict[str, object]) -> str:
        lines = "\n".join(json.dumps(step) for step in steps)
        prompt = sections.join("?", [(base.STEPS, lines)])
        ask = rule_models()["verifier"].ask([{"role": "user", "content": prompt}])
        return asyncio.run(ask).text.removeprefix("Conclusion: ")

    number, words = {"step": 1, "result": "It is 12."}, {"step": 1, "result": "I can't say."}
    assert verdict(number) == "STOP" and verdict(words) == "CONTINUE" and verdict() == "CONTINUE"
    assert verdict({"step": 1, "failed": "error", "result": "line 3"}) == "CONTINUE"
    assert verdict(number, words) == "CONTINUE"


@given(st.sampled_from(sorted(rule_models())), st.text())
def test_any_prompt_is_answered(role: str, prompt: str) -> None:
    ask = rule_models()[role].ask([{"role": "user", "content": prompt}])
    assert asyncio.run(ask).text


def tasks(*families: str) -> dict[str, Question]:
    problems = make_problems("tune", per_cell=1, seed=1, families=families)
    return {problem.id: Question(problem.text, problem.answer) for problem in problems}


def test_fixed_tools_score_what_the_tools_are_worth() -> None:
    asked = tasks("word", "range-sum")

    async def scores(**changes: Any) -> dict[str, float]:
        async with laptop_method(**changes) as method:
            return dict(await method.baselines(asked, TOKENIZER, PROFILE))

    assert len(asked) == 6
    assert asyncio.run(scores()) == {
        "always the coder": 0.5,
        "never the coder": pytest.approx(4 / 6),
        CEILING: 1.0,
    }
    assert asyncio.run(scores(tools=("base_generator",))) == {}


def test_a_baseline_is_not_made_of_lost_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Sandbox, code: str, stdin: str = "") -> Result:
        return SandboxBroken(out="", err="", seconds=0.0, tier="none", what="no more processes")

    async def scores() -> None:
        async with laptop_method() as method:
            monkeypatch.setattr(Sandbox, "run", broken)
            await method.baselines(tasks("range-sum"), TOKENIZER, PROFILE)

    with pytest.raises(PreflightError, match=r"lost:sandbox.*no more processes"):
        asyncio.run(scores())


def test_a_machine_without_walls_is_a_failed_preflight_and_not_a_run_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoWalls(Sandbox):
        async def start(self) -> Tier:
            raise SandboxUnavailable("isolation 'auto' can't be had")

    monkeypatch.setattr(method_module, "Sandbox", NoWalls)

    async def enter() -> None:
        async with laptop_method():
            pass

    with pytest.raises(PreflightError, match="isolation 'auto' can't be had"):
        asyncio.run(enter())


def test_the_claim_names_the_rules_only_where_they_helped() -> None:
    async def claims() -> list[tuple[str, ...]]:
        async with laptop_method() as method:
            return [method.claim(split, shipped=False) for split in ("held-out", "tune")]

    held_out, tune = asyncio.run(claims())
    assert "No setting was chosen" in held_out[0] and "the result flatters" in tune[0]
    assert held_out[1:] == tune[1:] and held_out[1].startswith("The helpers are rules")
