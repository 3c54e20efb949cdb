"""What tau brings to a backend: rows, tasks, users, texts."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from taubench import load_tasks, training_tasks
from taubench.fewshot import demonstrated
from taubench.splits import family_splits
from taubench.users import UserConfig
from turnwise.command import PreflightError, StopRun
from turnwise.config import ConfigError
from turnwise.method import Services, find_method, make_method, play
from turnwise.rows import Row
from turnwise.testing import byte_profile, byte_tokenizer, fail

from apps.trainers.tau.method import METHOD, TauMethod
from apps.trainers.tau.options import TauOptions
from apps.trainers.tau.tests.playing import OFFLINE, cancel_task, right_call, rollout, scripted

TASK = cancel_task()


def method(**options: Any) -> TauMethod:
    return TauMethod(TauOptions(**{"user": OFFLINE, **options}))


def ids(made: TauMethod, split: str) -> list[str]:
    """The rows' names, each checked to be the task's."""
    rows = made.rows(split)
    assert [made.task(row).id for row in rows] == [row.id for row in rows]
    return [row.id for row in rows]


def names(tasks: Any) -> list[str]:
    return [task.id for task in tasks]


def test_the_method_is_found_by_its_name() -> None:
    assert find_method("tau") is METHOD is TauMethod


def test_the_compact_prompt_trains_on_its_family_in_the_order_of_its_parts() -> None:
    made, parts = method(prompt="compact"), family_splits()
    assert ids(made, "train") == names(parts.train)
    assert ids(made, "held-out") == names(parts.held_out)
    assert ids(made, "tune") == names(parts.tune)
    assert ids(made, "dev") == names(load_tasks("retail", "dev"))


def test_the_full_prompt_trains_on_every_task_that_can_be_served() -> None:
    tasks = load_tasks("retail", "train")
    assert ids(method(), "train") == names(training_tasks(tasks))
    assert ids(method(include_failing_ground_truth=True), "train") == names(tasks)
    assert ids(method(env="airline"), "test") == names(load_tasks("airline", "test"))


def test_few_shot_leaves_out_the_tasks_that_it_shows_and_says_so() -> None:
    made = method(agent_strategy="few-shot")
    shown = {task.id for task in demonstrated("retail")}
    assert shown and not shown & set(ids(made, "train"))
    assert f"{len(shown)} training tasks stand in the prompt" in str(
        made.claim("dev", shipped=False)
    )


@pytest.mark.parametrize(
    ("options", "split", "words"),
    [
        ({}, "held-out", "the full prompt trains; use dev or test"),
        ({"prompt": "compact"}, "late", "retail has train, dev, test, held-out, tune"),
        ({"env": "airline"}, "train", "airline has no training tasks"),
        ({"env": "airline"}, "dev", "airline has test"),
        ({"user": UserConfig(strategy="human")}, "train", "nobody could answer"),
    ],
)
def test_a_split_that_is_not_there_is_refused(
    options: dict[str, Any], split: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        method(**options).rows(split)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (Row("500", where="a.jsonl, line 3"), "a.jsonl, line 3: retail train has tasks 0 to 499"),
        (Row("²"), "--prompt-data: retail train has tasks 0 to 499, found '²'"),
        (Row("9" * 5000), "is --input-key index"),
        (Row("-1"), "found '-1'"),
        (Row([{"role": "user"}]), "is --input-key index"),
        (Row("0", metadata={"task_split": "late"}), "there is no retail late"),
        (Row("0", metadata={"env": ["retail"]}), "there is no"),
        (Row("0", metadata={"task_split": ["dev"]}), "there is no"),
        (Row("0", metadata={"instruction": "Be kind."}), "not that of retail/train/0"),
    ],
)
def test_a_row_that_is_no_task_is_refused_with_its_place(row: Row, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        method().task(row)
    assert words in str(caught.value)


def test_a_row_goes_before_the_options() -> None:
    made = method(prompt="full")
    assert made.task(Row("3")).id == "retail/train/3"
    assert made.task(Row("3", metadata={"task_split": "dev"})).id == "retail/dev/3"
    airline = Row("3", metadata={"env": "airline", "task_split": "test"})
    assert made.task(airline).id == "airline/test/3"
    assert method(env="airline").task(Row("3")).id == "airline/test/3"


def test_a_task_that_the_prompt_shows_is_refused_as_a_row() -> None:
    shown = demonstrated("retail")[0]
    with pytest.raises(ConfigError, match="is a demonstration of agent-strategy few-shot"):
        method(agent_strategy="few-shot").task(Row(str(shown.index)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env": "airline", "task_split": "train"}, "airline has test"),
        ({"env": "airline", "prompt": "compact"}, "compact shows retail alone"),
        ({"tool_format": "qwen52"}, "did you mean 'qwen25'"),
        ({"user_deadline_s": 60, "user": UserConfig(deadline_s=60)}, "must be below"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TauOptions(**{"user": OFFLINE, **options})


def test_few_shot_needs_a_domain_with_tasks_to_show() -> None:
    with pytest.raises(ConfigError, match="agent-strategy few-shot: .* no train tasks"):
        method(env="airline", agent_strategy="few-shot")


@pytest.mark.parametrize(
    ("episode_s", "user_s", "kept"),
    [
        (None, None, (120, 110)),
        (None, 220, (240, 220)),
        (None, 11, (120, 11)),
        (60, None, (60, 55)),
        (60, 50, (60, 50)),
    ],
)
def test_the_users_own_deadline_ends_before_the_episodes(
    episode_s: float | None, user_s: float | None, kept: tuple[float, float]
) -> None:
    given: dict[str, Any] = {} if user_s is None else {"deadline_s": user_s}
    options = TauOptions(user_deadline_s=episode_s, user=UserConfig(strategy="offline", **given))
    for made in (options, TauOptions(**options.model_dump(mode="json"))):
        assert (made.message_deadline_s, made.user.deadline_s) == pytest.approx(kept)


def test_turns_go_with_the_prompt_unless_they_are_given() -> None:
    assert (method().options.turns, method(prompt="compact").options.turns) == (30, 8)
    assert method(max_turns=3, prompt="compact").options.turns == 3


def test_the_laptops_preset_is_the_run_without_arguments() -> None:
    assert METHOD.preset is not None and METHOD.shipped is not None
    preset = tomllib.loads(METHOD.preset.read_text())
    made = make_method("tau", preset.pop("tau"))
    assert preset == {"num-rollout": 24, "lr": 3e-4, "eps-clip-high": 0.28}
    options = made.options
    assert (options.prompt, options.turns, options.user.strategy) == ("compact", 8, "offline")
    assert options.objective == "global-token-mean"
    assert (METHOD.shipped / "config.json").is_file()


async def test_what_is_said_about_a_result() -> None:
    made = method(prompt="compact")
    await made.open(Services())
    tune = " ".join(made.claim("tune", shipped=False))
    assert "so the result flatters" in tune and "offline" in tune and "warmed up" not in tune
    assert "warmed up" in made.claim("held-out", shipped=True)[-1]
    assert made.players() == {"user": "offline-1(opening=everything,patience=1)"}
    tasks = {row.id: made.task(row) for row in made.rows("held-out")}
    found = await made.baselines(tasks, byte_tokenizer(), byte_profile())
    assert found == {"doing nothing": 0.0}
    assert made.prompt_tokens(list(tasks.values()), byte_profile()) > 300


@pytest.mark.parametrize(
    ("user", "services", "words"),
    [
        (
            {"key_env": "NOT_SET", "base_url": "http://h/v1"},
            {},
            "user.key-env: .* NOT_SET is not set",
        ),
        ({"sglang": "m"}, {}, "user.sglang: is for runs through slime"),
        ({"strategy": "human"}, {"server": str}, "nobody sits at the terminals"),
        ({"user_cache": "absent", "user_replay": True}, {}, "user.user-replay|user.user-cache"),
    ],
)
async def test_a_user_that_can_not_be_had_is_refused_by_its_option(
    user: dict[str, Any], services: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        await method(user=UserConfig(**user)).open(Services(environ={}, **services))


async def test_a_user_that_does_not_answer_ends_the_run_before_it_begins() -> None:
    async with endpoint(401) as url:
        user = UserConfig(base_url=url, key_env="", model="m")
        with pytest.raises(PreflightError, match="user: no answer: .*401"):
            await method(user=user).open(Services())


async def test_slime_serves_the_user_under_its_name() -> None:
    async with endpoint(200) as url:
        made = method(user=UserConfig(sglang="customer"))
        await made.open(Services(server=lambda name: f"{url}/{name}".removesuffix("/customer")))
        assert made.metrics()["user/requests"] == 1
        assert "customer" in made.players()["user"]
        await made.close()


async def test_an_episode_lost_to_the_spend_cap_stops_the_run() -> None:
    async with endpoint(200) as url:
        user = UserConfig(
            base_url=url, key_env="", model="m", max_tokens=10, write_price=1000, spend_cap_usd=0.02
        )
        made = method(user=user, prompt="compact")
        await made.open(Services())
        policy, _ = scripted("Shall I?", right_call(TASK), "Done.")
        with pytest.raises(StopRun, match="user.spend-cap-usd: the spend cap of"):
            await play(made, rollout(TASK), policy)
        await made.close()


async def test_the_method_plays_and_can_be_opened_again() -> None:
    made = method(prompt="compact")
    for _ in range(2):
        await made.open(Services())
        policy, _ = scripted(right_call(TASK), "Done.")
        assert (await play(made, rollout(TASK), policy)).score == 1.0
        broken, _ = scripted(fail("gone"))
        lost = await play(made, rollout(TASK), broken)
        assert (lost.ending.label, lost.score) == ("lost:engine", None)
        assert lost.metrics["user_replies"] == 0 and lost.info["prompt"] == "compact"
        await made.close()


@asynccontextmanager
async def endpoint(status: int) -> AsyncIterator[str]:
    """Answers every request alike, for ten tokens."""

    async def answer(request: web.Request) -> web.StreamResponse:
        said = {
            "choices": [{"message": {"content": "Help me."}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 10},
        }
        return web.json_response(said, status=status)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
