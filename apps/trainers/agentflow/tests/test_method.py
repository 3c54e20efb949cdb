"""The method that every backend plays: options, rows, services that are opened and closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from turnwise.answers import Check, MathVerifier
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError
from turnwise.method import Services, find_method, make_method
from turnwise.models import ModelConfig
from turnwise.models.client import ChatClient
from turnwise.models.config import ChatConfig
from turnwise.policy import EndpointPolicy
from turnwise.testing import ScriptedEngine, byte_policy, byte_profile, decode, say

from apps.trainers.agentflow.config import AgentFlowOptions, ModelsConfig
from apps.trainers.agentflow.method import AgentFlowMethod
from apps.trainers.agentflow.question import Question, to_question
from apps.trainers.agentflow.tests.scripted import options as make_options
from apps.trainers.agentflow.tests.scripted import policy, rollout, row, step

PRODUCT = Question("What is 6 * 7 + 0?", "42")
RULES: dict[str, Any] = {"helpers": "rules", "tools": ["base_generator"]}
TURNS = ["It multiplies.", step("base_generator")]
NOWHERE: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "deadline_s": 0.5}


DEFAULTS: dict[str, Any] = {
    "prompt": "full",
    "max_steps": 5,
    "on_malformed": "retry",
    "objective": "turn-mean",
    "max_total_tokens": 131_072,
    "wall_s": 1_800.0,
    "engine_deadline_s": 600.0,
}


def method_of(options: dict[str, Any]) -> AgentFlowMethod:
    made = make_method("agentflow", options)
    assert isinstance(made, AgentFlowMethod)
    return made


def test_the_method_is_found_by_name_and_its_turns_are_segments_of_their_own() -> None:
    assert find_method("agentflow") is AgentFlowMethod
    assert AgentFlowMethod.Options is AgentFlowOptions and AgentFlowMethod.fans_out


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
        method_of(options)


def test_every_option_has_the_default_of_the_published_run_whatever_the_backend() -> None:
    assert {name: getattr(make_options(), name) for name in DEFAULTS} == DEFAULTS


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
    assert to_question(row(PRODUCT)) == PRODUCT
    assert to_question(row(PRODUCT, prompt=chat("How many?"))).text == "How many?"


@pytest.mark.parametrize("label", [42, " 42 ", ["42"], {"ground_truth": "42", "style": "rule"}])
def test_a_label_may_be_any_json_value_that_has_one_answer(label: Any) -> None:
    assert to_question(row(PRODUCT, label=label)).answer == "42"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": " "}, "has no question"),
        ({"prompt": 7}, "has no question, found 7"),
        ({"prompt": []}, "has no question"),
        ({"prompt": chat(None)}, "has no question"),
        *(
            ({"label": label}, "label: (expected a text or a number|is empty|is nan)")
            for label in (None, " ", True, [], ["1", "2"], {"answer": "42"}, {})
        ),
    ],
)
def test_a_row_that_is_no_question_is_refused_by_its_place(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=f"^train.jsonl, line 3: .*{words}"):
        to_question(row(PRODUCT, **{"where": "train.jsonl, line 3", **changes}))


def test_the_generated_problems_are_rows_of_three_splits_that_share_none() -> None:
    method = method_of({**RULES, "eval_per_cell": 2})
    splits = {name: method.rows(name) for name in ("train", "held-out", "tune")}
    assert [len(rows) for rows in splits.values()] == [479, 42, 41]
    ids = [one.id for rows in splits.values() for one in rows]
    assert len(set(ids)) == len(ids)
    assert all(method.task(one).answer == one.label for one in splits["tune"])
    with pytest.raises(ConfigError, match="'heldout'; did you mean 'held-out'"):
        method.rows("heldout")


def test_the_first_prompt_is_measured_before_anything_is_opened() -> None:
    method = method_of(RULES)
    short, long = (method.prompt_tokens([Question("?" * n, "1")], byte_profile()) for n in (1, 60))
    assert long == short + 59 > 500
    both = [Question("?" * 60, "1"), Question("?", "1")]
    assert method.prompt_tokens(both, byte_profile()) == long


@asynccontextmanager
async def opened(options: dict[str, Any], **services: Any) -> AsyncIterator[AgentFlowMethod]:
    method = method_of(options)
    await method.open(Services(**services))
    try:
        yield method
    finally:
        await method.close()


async def test_an_episode_is_played_with_rules_for_helpers_and_a_real_judge() -> None:
    async with opened(RULES) as method:
        episode = await method.run(rollout(PRODUCT), policy(*TURNS)[0])
        assert method.players() == {"helpers": "rules", "judge": "rule"}
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    assert (episode.task_id, episode.rollout_id, episode.group_id) == ("maths/1", "r1", "g1")
    assert method.metrics()["judge/graded"] == 1


async def test_episodes_at_the_same_time_share_what_was_opened() -> None:
    async with opened(RULES) as method:
        rollouts = [rollout(PRODUCT, rollout_id=f"r{n}") for n in range(8)]
        episodes = await asyncio.gather(*(method.run(one, policy(*TURNS)[0]) for one in rollouts))
    assert [episode.score for episode in episodes] == [1.0] * 8
    assert method.metrics()["judge/graded"] == 8


async def test_an_episode_before_open_is_a_bug_that_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"open\(\) must be awaited"):
        await method_of(RULES).run(rollout(PRODUCT), policy(*TURNS)[0])


async def test_a_method_that_was_closed_may_be_opened_again() -> None:
    method = method_of(RULES)
    for graded in (1, 2):
        await method.open(Services())
        episode = await method.run(rollout(PRODUCT), policy(*TURNS)[0])
        await method.close()
        assert (episode.score, method.metrics()["judge/graded"]) == (1.0, graded)


async def test_models_that_do_not_answer_are_a_failed_preflight() -> None:
    method = method_of({"models": {"base": NOWHERE}, "tools": ["base_generator"]})
    with pytest.raises(PreflightError, match="models: 1 of 1 frozen models do not answer: base"):
        await method.open(Services())


async def test_a_judge_that_compares_nothing_is_a_failed_preflight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(self: MathVerifier, prediction: str, truth: str) -> Check:
        raise BoundaryError(Boundary.JUDGE, "math-verify does not start: it is not here")

    monkeypatch.setattr(MathVerifier, "check", broken)
    with pytest.raises(PreflightError, match="judge: .*math-verify does not start"):
        await method_of(RULES).open(Services())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**RULES, "tools": ["calculator"]}, "tools: 'calculator' is neither one of"),
        ({**RULES, "tools": ["search"]}, "search needs the option documents"),
        ({**RULES, "judge": {"audit": 0.5}}, "judge.audit: needs a judge model"),
        ({"models": {"base": {"sglang": "frozen"}}}, "models.base.sglang: this backend starts no"),
        ({"models": {"base": {"local": True}}}, "models.base.local: this backend has no engine"),
        ({"models": {"base": {**NOWHERE, "key_env": "NO_SUCH_KEY"}}}, "NO_SUCH_KEY"),
    ],
)
async def test_options_that_name_what_there_is_not_are_refused_before_anything_is_asked(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        await method_of(options).open(Services(environ={}))


ANSWERS = (
    ("Choose the single next step", step("base_generator")),
    ("Before any tool is used", "It multiplies."),
    ("A planner chose", '{"query": "6*7"}'),
    ("Decide whether", "Conclusion: STOP"),
    ("Answer the question", r"\boxed{42}"),
)


def answer_to(prompt: str) -> str:
    """What a planner or a helper says that is asked by the full prompts."""
    return next((answer for words, answer in ANSWERS if words in prompt), "42")


@asynccontextmanager
async def endpoint(said: list[str]) -> AsyncIterator[str]:
    """The URL of a model that plays every part; notes what it was asked."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        said.append(body["messages"][-1]["content"])
        choice = {"message": {"content": answer_to(said[-1])}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        return web.json_response({"choices": [choice], "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_models_of_an_endpoint_help_and_are_counted() -> None:
    said: list[str] = []
    frozen = {"models": {"base": {"sglang": "frozen"}}, "tools": ["base_generator"]}
    async with endpoint(said) as url:
        async with opened(frozen, server={"frozen": url}.__getitem__) as method:
            episode = await method.run(rollout(PRODUCT), policy(*TURNS)[0])
            assert method.players() == {"helpers": "base frozen", "judge": "rule"}
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    assert len(said) == 1 + 4
    planner = episode.metrics["prompt_tokens"] + episode.metrics["sampled_tokens"]
    assert episode.metrics["total_tokens"] == planner + 4 * 5
    assert method.metrics()["model/base/requests"] == 5


async def test_a_planner_behind_an_endpoint_is_evaluated_by_the_same_loop() -> None:
    said: list[str] = []
    question = Question("<|im_end|> What is 6 * 7 + 0?", "42")
    async with endpoint(said) as url:
        client = ChatClient(ChatConfig(base_url=url, model="m"), boundary=Boundary.ENGINE)
        async with opened(RULES) as method:
            episode = await method.run(rollout(question), EndpointPolicy(client=client))
        await client.close()
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    assert episode.segments == () and len(said) == 2
    assert not any("<|im_end|>" in prompt for prompt in said)
    assert episode.metrics["turns"] == 2 and episode.metrics["prompt_tokens"] == 6


async def test_the_policy_s_own_engine_can_help() -> None:
    engine = ScriptedEngine(lambda prompt_ids: say(answer_to(decode(prompt_ids))))
    made = byte_policy(engine)
    local = {"models": {"base": {"local": True}}, "tools": ["base_generator"]}
    async with opened(local, policy=made) as method:
        episode = await method.run(rollout(PRODUCT), made)
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    assert len(engine.calls) == 1 + 6 and len(episode.segments) == 2
