"""The method that hooks and evaluators run: options, rows, services that are opened and closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from apps.trainers.agentflow.services import Budgets, Question
from turnwise.answers import Check, MathVerifier
from turnwise.config import ConfigError
from turnwise.engine.scripted import Reply, ScriptedEngine
from turnwise.episode import Boundary, BoundaryError
from turnwise.method import make_method as make_by_name
from turnwise.method import options_class
from turnwise.models import ModelConfig
from turnwise.policy import Policy

from apps.trainers.agentflow.config import AgentFlowOptions, ModelsConfig
from apps.trainers.agentflow.method import AgentFlowMethod, make_method, to_question
from apps.trainers.agentflow.tests.scripted import decode, job, policy, profile, say, step

PRODUCT = Question("maths/2", "What is 6 * 7 + 0?", "42")
RULES: dict[str, Any] = {"helpers": "rules", "tools": ["base_generator"]}
TURNS = ["It multiplies.", step("base_generator")]
NOWHERE: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "deadline_s": 0.5}


def test_the_method_and_its_options_are_found_by_name() -> None:
    assert options_class("agentflow") is AgentFlowOptions
    method = make_by_name("agentflow", RULES)
    assert isinstance(method, AgentFlowMethod) and method.fans_out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "models: executor and verifier and final have no model; give models.base"),
        ({"models": {"executor": NOWHERE}}, "verifier and final have no model"),
        ({**RULES, "models": {"base": NOWHERE}}, "helpers rules take none but the judge"),
        ({**RULES, "max_steps": 0}, "max-steps"),
        ({**RULES, "prompt": "short"}, "prompt"),
        ({**RULES, "on_malformed": "ignore"}, "on-malformed"),
        ({**RULES, "objective": "mean"}, "objective"),
        ({**RULES, "colour": "red"}, "colour"),
        ({**RULES, "sandbox": {"isolation": "docker"}}, "sandbox.isolation"),
        ({**RULES, "memory_characters": 10}, "memory-characters"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_method(options)


def test_every_budget_is_an_option_with_the_same_default() -> None:
    assert AgentFlowOptions(**RULES).budgets == Budgets()
    assert AgentFlowOptions(**RULES, max_steps=2, wall_s=9.0).budgets == Budgets(
        max_steps=2, wall_s=9.0
    )


def test_a_role_is_played_by_its_own_model_else_by_base() -> None:
    models = ModelsConfig(base=ModelConfig(**NOWHERE), coder=ModelConfig(**NOWHERE))
    assert models.player("coder") == "coder"
    assert models.player("executor") == models.player("base_generator") == "base"
    assert set(models.by_name()) == {"base", "coder"}


def chat(content: Any) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "An example?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": content},
    ]


def test_a_row_is_a_question_with_its_answer() -> None:
    made, _ = policy()
    assert to_question(job(PRODUCT, made)) == Question(
        "maths/2", PRODUCT.text, "42", {"id": "maths/2"}
    )
    assert to_question(job(PRODUCT, made, prompt=chat("How many?"))).text == "How many?"
    assert to_question(job(PRODUCT, made, label=42, metadata={})).answer == "42"
    assert to_question(job(PRODUCT, made, metadata={})).id == "g"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": " "}, "has no question"),
        ({"prompt": 7}, "has no question: 7"),
        ({"prompt": []}, "has no question"),
        ({"prompt": chat(None)}, "has no question"),
        ({"label": None}, "has no answer; is --label-key right"),
        ({"label": " "}, "has no answer"),
    ],
)
def test_a_row_that_is_no_question_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        to_question(job(PRODUCT, policy()[0], **changes))


async def test_an_episode_is_played_with_rules_for_helpers_and_a_real_judge() -> None:
    method = make_method(RULES)
    episode = await method.run(job(PRODUCT, policy(*TURNS)[0]))
    await method.close()
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    assert (episode.task_id, episode.rollout_id, episode.group_id) == ("maths/2", "r", "g")
    assert method.metrics()["judge/graded"] == 1


async def test_episodes_at_the_same_time_share_what_the_first_one_opens() -> None:
    method = make_method(RULES)
    jobs = [job(PRODUCT, policy(*TURNS)[0], rollout_id=f"r{n}") for n in range(8)]
    episodes = await asyncio.gather(*map(method.run, jobs))
    await method.close()
    assert [episode.score for episode in episodes] == [1.0] * 8
    assert method.metrics()["judge/graded"] == 8


async def test_models_that_do_not_answer_stop_the_run_before_anything_is_sampled() -> None:
    method = make_method({"models": {"base": NOWHERE}, "tools": ["base_generator"]})
    made, engine = policy(*TURNS)
    with pytest.raises(ConfigError, match="models: 1 of 1 frozen models do not answer: base"):
        await method.run(job(PRODUCT, made))
    await method.close()
    assert engine.calls == []


async def test_a_judge_that_compares_nothing_stops_the_run_before_anything_is_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(self: MathVerifier, prediction: str, truth: str) -> Check:
        raise BoundaryError(Boundary.JUDGE, "math-verify does not start: it is not here")

    monkeypatch.setattr(MathVerifier, "check", broken)
    method = make_method(RULES)
    made, engine = policy(*TURNS)
    with pytest.raises(ConfigError, match="judge: .*math-verify does not start"):
        await method.run(job(PRODUCT, made))
    await method.close()
    assert engine.calls == []


async def test_models_of_an_endpoint_help_and_are_counted() -> None:
    said: list[str] = []

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        prompt = body["messages"][-1]["content"]
        said.append(prompt)
        answer = "42"
        if prompt.startswith("A planner chose"):
            answer = '{"query": "6*7"}'
        elif prompt.startswith("Decide whether"):
            answer = "Conclusion: STOP"
        elif prompt.startswith("Answer the question"):
            answer = r"\boxed{42}"
        choice = {"message": {"content": answer}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        return web.json_response({"choices": [choice], "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        method = make_method(
            {"models": {"base": {"sglang": "frozen"}}, "tools": ["base_generator"]}
        )
        method.connect(lambda name: f"http://127.0.0.1:{port}/v1" if name == "frozen" else "")
        episode = await method.run(job(PRODUCT, policy(*TURNS)[0]))
        await method.close()
    finally:
        await runner.cleanup()
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    assert len(said) == 1 + 4
    planner = episode.metrics["prompt_tokens"] + episode.metrics["sampled_tokens"]
    assert episode.metrics["total_tokens"] == planner + 4 * 5
    assert method.metrics()["model/base/requests"] == 5


async def test_a_helper_in_the_engine_s_process_is_refused_where_slime_serves() -> None:
    method = make_method({"models": {"base": {"local": True}}, "tools": ["base_generator"]})
    method.connect(lambda name: "")
    with pytest.raises(ConfigError, match="models.base.local: this backend has no engine"):
        await method.run(job(PRODUCT, policy(*TURNS)[0]))


async def test_the_policy_s_own_engine_can_help() -> None:
    def answers(prompt_ids: Any) -> Reply:
        prompt = decode(prompt_ids)
        for words, answer in (
            ("Choose the single next step", step("base_generator")),
            ("Before any tool is used", "It multiplies."),
            ("A planner chose", '{"query": "6*7"}'),
            ("Decide whether", "Conclusion: STOP"),
            ("Answer the question", r"\boxed{42}"),
        ):
            if words in prompt:
                return say(answer)
        return say("42")

    engine = ScriptedEngine(answers)
    made = Policy(engine=engine, profile=profile(), max_context_tokens=16_384)
    method = make_method({"models": {"base": {"local": True}}, "tools": ["base_generator"]})
    episode = await method.run(job(PRODUCT, made))
    await method.close()
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    assert len(engine.calls) == 1 + 6 and len(episode.segments) == 2
