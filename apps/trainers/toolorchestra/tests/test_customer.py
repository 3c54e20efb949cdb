from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from taubench.tau2 import Tau2Task, task_by_id
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, Episode
from turnwise.models import Act, ChatModel, ModelConfig
from turnwise.replay import Replay
from turnwise.rollout import Rollout
from turnwise.rows import Row
from turnwise.testing import ScriptedEngine, byte_policy, call, decode, say
from turnwise.testing.servers import FakeChat, edit
from turnwise.users import UserReply

from apps.trainers.toolorchestra.customer import Desk, run_customer
from apps.trainers.toolorchestra.customer_task import CustomerTask, customer_tools, domain_tools
from apps.trainers.toolorchestra.experts import Experts
from apps.trainers.toolorchestra.method import ToolOrchestraMethod
from apps.trainers.toolorchestra.options import BreakerOptions, ToolOrchestraOptions
from apps.trainers.toolorchestra.tables import Expert

STOP = "###STOP###"
TABLE = (
    Expert(role="expert-1", tool="call_expert", model="large", read_price=10, write_price=40),
    Expert(role="expert-2", tool="call_expert", model="small", read_price=1, write_price=2),
)
OPTIONS = ToolOrchestraOptions(run_code=False, policy_read_price=0, policy_write_price=0)
HAND_OVER = call("call_expert", expert="expert-1")


def a_task() -> Tau2Task:
    """The task of the mock domain that one write solves."""
    return task_by_id("mock", "create_task_1")


def gold() -> tuple[str, Mapping[str, Any]]:
    criteria = a_task().criteria
    assert criteria is not None and criteria.actions
    [action] = criteria.actions
    return action.name, action.arguments


@dataclass
class Customer:
    """Gives its answers one by one; an exception is raised."""

    answers: Sequence[str | Exception] = ("I need a task.", f"Thanks. {STOP}")
    name: str = "customer"
    heard: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._answers: Iterator[str | Exception] = iter(self.answers)

    async def reset(self, task: Tau2Task) -> str:
        return self._next()

    async def reply(self, agent_text: object) -> UserReply:
        self.heard.append(agent_text)
        text = self._next()
        return UserReply(text, STOP in text)

    def _next(self) -> str:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class Stand:
    """An expert that acts as it is told."""

    acts: Sequence[Act | Exception]
    name: str = "large"
    asked: list[tuple[Any, Any]] = field(default_factory=list)

    async def ask(self, messages: Any, **more: Any) -> Any:
        raise AssertionError("an expert of call_expert is given tools")

    async def act(self, messages: Any, tools: Any, *, seed: int | None = None) -> Act:
        self.asked.append((messages, tools))
        found = self.acts[min(len(self.asked), len(self.acts)) - 1]
        if isinstance(found, Exception):
            raise found
        return found


def task(**changes: Any) -> CustomerTask:
    given = {"experts": TABLE, "preferences": {"accuracy": 1.0, "cost": 0.5}, **changes}
    return CustomerTask(task=a_task(), **given)


async def serve(
    *turns: str,
    customer: Customer | None = None,
    expert: Any = None,
    engine: ScriptedEngine | None = None,
    replay: Replay | None = None,
    judge: Any = None,
    criteria: Mapping[str, Any] | None = None,
    **options: Any,
) -> Episode:
    """One episode of a policy that says `turns`."""
    engine = engine or ScriptedEngine([say(turn) for turn in turns])
    chosen = OPTIONS.model_copy(update=options)
    models = {"large": expert or Stand([Act("")])}
    desk = Desk(
        experts=Experts(models, BreakerOptions()),
        make_user=lambda domain: customer or Customer(),
        judge=judge,
    )
    served = task()
    if criteria is not None:
        assert served.task.criteria is not None
        changed = replace(served.task.criteria, **criteria)
        served = replace(served, task=replace(served.task, criteria=changed))
    rollout = Rollout(served, "task", "task#0", "task", seed=0, replay=replay)
    return await run_customer(rollout, byte_policy(engine), desk, chosen)


async def test_a_policy_that_does_it_itself_is_right_and_pays_no_expert() -> None:
    name, arguments = gold()
    episode = await serve(call(name, **arguments), "It is done.")
    assert episode.ending.label == "finished" and episode.metrics["correct"] == 1
    assert episode.metrics["expert_usd"] == 0 and episode.score == 1.0


async def test_an_expert_s_native_call_is_taken_as_the_agent_s_and_costs_its_own_tokens() -> None:
    import json

    name, arguments = gold()
    expert = Stand([Act("", ((name, json.dumps(arguments)),), 1_000, 100)])
    engine = ScriptedEngine([say(HAND_OVER), say("It is done.")])
    episode = await serve(engine=engine, expert=expert)
    assert episode.metrics["correct"] == 1
    assert episode.metrics["cost_usd"] == pytest.approx((1_000 * 10 + 100 * 40) / 1e6)
    assert f"Called {name}(" in decode(engine.calls[-1].prompt_ids)
    assert len(episode.segments) == 1


async def test_an_expert_s_recorded_call_is_taken_again_and_nobody_is_asked() -> None:
    import json

    name, arguments = gold()
    record = Replay()
    expert = Stand([Act("", ((name, json.dumps(arguments)),), 1_000, 100)])
    first = await serve(HAND_OVER, "It is done.", expert=expert, replay=record)
    kept = Replay(json.loads(json.dumps(record.calls)))
    gone = Stand([RuntimeError("asked again")])
    again = await serve(HAND_OVER, "It is done.", expert=gone, replay=kept)
    assert first.metrics["correct"] == 1 and again.transcript == first.transcript
    assert again.score == first.score and not gone.asked


async def test_an_expert_s_words_reach_the_customer_without_its_thoughts() -> None:
    customer = Customer(["I need a task.", f"Thanks. {STOP}"])
    expert = Stand([Act("<think>What a bore.</think>Which title shall it have?")])
    episode = await serve(HAND_OVER, customer=customer, expert=expert)
    assert customer.heard == ["Which title shall it have?"]
    assert episode.ending.label == "finished" and episode.metrics["correct"] == 0


async def test_the_expert_sees_the_conversation_and_the_domain_s_tools_alone() -> None:
    expert = Stand([Act("Which title?")])
    await serve(HAND_OVER, expert=expert)
    [(messages, tools)] = expert.asked
    assert [one["role"] for one in messages] == ["system", "assistant", "user"]
    names = [one["function"]["name"] for one in tools]
    assert "call_expert" not in names and "create_task" in names
    assert "call_expert" not in str(messages)


def test_nobody_can_transfer_and_be_done_with_it() -> None:
    transfer = "transfer_to_human_agents"
    for given in (domain_tools(a_task(), transfer=False), customer_tools(task(), transfer=False)):
        assert transfer not in [one["function"]["name"] for one in given]
    kept = customer_tools(task(), transfer=True)
    assert [one["function"]["name"] for one in kept][-1] == "call_expert"


@pytest.mark.parametrize(
    ("turn", "customer", "expert", "label"),
    [
        (HAND_OVER, None, BoundaryError(Boundary.ENGINE, "gone"), "lost:engine"),
        ("Hello.", Customer([BoundaryError(Boundary.USER, "gone")]), None, "lost:user"),
        ("Hello.", Customer(["Hi.", BoundaryError(Boundary.USER, "x")]), None, "lost:user"),
        ("Hello.", Customer(["Hi.", ""]), None, "lost:user"),
    ],
)
async def test_a_failing_expert_or_customer_loses_the_episode(
    turn: str, customer: Any, expert: Any, label: str
) -> None:
    stand = None if expert is None else Stand([expert])
    episode = await serve(turn, customer=customer, expert=stand)
    assert episode.ending.label == label and episode.score is None
    assert "gone" not in str([one["content"] for one in episode.transcript])


async def test_an_expert_that_can_not_be_given_tools_loses_the_episode() -> None:
    class Words:
        name = "large"

        async def ask(self, messages: Any, **more: Any) -> Any: ...

    episode = await serve(HAND_OVER, expert=Words())
    assert episode.ending.label == "lost:engine"
    assert "can't be given tools" in str(episode.ending.error)


@pytest.mark.parametrize(
    ("turns", "options", "label"),
    [
        (["Hello."] * 9, {"max_turns": 2}, "stopped:turns"),
        (["<tool_call>{</tool_call>"] * 9, {"max_retries": 1}, "stopped:format"),
        ([""], {}, "stopped:format"),
    ],
)
async def test_each_ending_of_the_policy(turns: list[str], options: Any, label: str) -> None:
    customer = Customer(["Hi.", *["Go on."] * 9])
    episode = await serve(*turns, customer=customer, **options)
    assert episode.ending.label == label and episode.score == 0.0


async def test_an_expert_that_does_not_exist_is_told_and_costs_nothing() -> None:
    engine = ScriptedEngine([say(call("call_expert", expert="expert-9")), say("Hello.")])
    episode = await serve(engine=engine)
    assert "no expert of that name, but expert-1" in decode(engine.calls[-1].prompt_ids)
    assert episode.metrics["expert_usd"] == 0 and episode.metrics["unknown_calls"] == 1


async def test_native_calls_of_an_endpoint_come_back_as_such() -> None:
    def native(answer: dict[str, Any]) -> None:
        message = answer["choices"][0]["message"]
        function = {"name": "create_task", "arguments": '{"title": "x"}'}
        message |= {"content": None, "tool_calls": [{"id": "a", "function": function}]}

    async with FakeChat(lambda messages: "Words.") as server:
        server.misbehave = lambda call: edit(native)
        model = ChatModel("large", ModelConfig(base_url=f"{server.url}/v1", model="m"))
        tools = domain_tools(a_task(), transfer=False)
        act = await model.act([{"role": "user", "content": "Hi."}], tools, seed=3)
        await model.close()
        assert act.calls == (("create_task", '{"title": "x"}'),) and act.text == ""
        assert server.calls[0].body["tools"] == tools and server.calls[0].body["seed"] == 3


def row(**metadata: Any) -> Row:
    experts = [one.model_dump() for one in TABLE]
    given = {"category": "func_call", "domain": "mock", "task_id": "create_task_1"}
    metadata = {**given, "experts": experts, **metadata}
    return Row(prompt="mock 1", metadata=metadata, where="rows.jsonl:3")


def test_a_row_of_a_conversation_is_its_task_with_the_row_s_experts() -> None:
    model = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    method = ToolOrchestraMethod(ToolOrchestraOptions(models={"large": model, "small": model}))
    found = method.task(row())
    assert isinstance(found, CustomerTask) and found.task.id == "create_task_1"
    assert found.experts == TABLE


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"category": "chat"}, "category: expected qa or func_call"),
        ({"domain": "bank"}, "domain: expected one of mock"),
        ({"task_id": "none"}, "mock has no task 'none'"),
        ({"experts": []}, "nobody stands in"),
    ],
)
def test_a_bad_row_of_a_conversation_is_refused(metadata: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"rows.jsonl:3: .*{words}"):
        ToolOrchestraMethod(ToolOrchestraOptions(experts="rules")).task(row(**metadata))


async def test_an_expert_is_shown_earlier_calls_with_their_results_by_id() -> None:
    name, arguments = gold()
    expert = Stand([Act("It is done.")])
    await serve(call(name, **arguments), HAND_OVER, expert=expert)
    [(messages, _)] = expert.asked
    made = next(one for one in messages if one.get("tool_calls"))
    [answered] = [one for one in messages if one["role"] == "tool"]
    assert made["tool_calls"][0]["id"] == answered["tool_call_id"] != ""
    assert made["tool_calls"][0]["function"]["name"] == name


async def test_t17_nobody_judges_assertions_that_the_reward_does_not_count() -> None:
    class Refusing:
        async def check(self, messages: Any, assertions: Any) -> Any:
            raise AssertionError("was asked")

    name, arguments = gold()
    for basis, label in ((("DB",), "finished"), (("DB", "NL_ASSERTION"), "lost:judge")):
        criteria = {"nl_assertions": ("The agent was kind.",), "basis": basis}
        turns = (call(name, **arguments), "It is done.")
        episode = await serve(*turns, judge=Refusing(), criteria=criteria)
        assert episode.ending.label == label
    assumed = await serve(*turns, criteria=criteria)
    assert (assumed.score, assumed.metrics["assumed_assertions"]) == (1.0, 1.0)


async def test_t18_what_was_communicated_is_matched_as_officially() -> None:
    name, arguments = gold()
    for said, right in (("It is flight class two.", 0.0), ("It is flight_class two.", 1.0)):
        criteria = {"communicate": ("flight_class",), "basis": ("DB", "COMMUNICATE")}
        episode = await serve(call(name, **arguments), said, criteria=criteria)
        assert episode.metrics["correct"] == right
