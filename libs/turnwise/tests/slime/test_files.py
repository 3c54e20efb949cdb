"""The run folder of a run on the cluster: what the hooks write, when, and what a report makes of
it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slime.observability import logging_utils  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    eval_rollout,
    generate_rollout_async,
)
from slime_standin.contract import DataSource
from slime_standin.errands import Courier, rows
from turnwise.config import ConfigError
from turnwise.report import write_report
from turnwise.run.folder import RunFolder
from turnwise.run.metrics import EvalRow, SlimeRow, TrainRow, parse_row
from turnwise.run.relay import relayed_row
from turnwise.run.traces import parse_trace
from turnwise.slime import accounts, eval_log, files, generate, rollout_log, train_data, training
from turnwise.testing.servers import FakeSGLang, status

GREEDY = {"temperature": 1.0, "top_p": 1.0, "top_k": 1, "max_new_tokens": 1024}
Args = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture
def launched(args: Args, folder: RunFolder) -> Args:
    """slime's arguments as the launcher gives them, with its run folder on this machine."""

    def make(**changes: Any) -> Any:
        arguments = args(**changes)
        arguments.turnwise_run_dir = str(folder.path)
        folder.path.mkdir(exist_ok=True)
        copy = {"turnwise": arguments.turnwise, "turnwise_run_dir": str(folder.path)}
        (folder.path / "turnwise.json").write_text(json.dumps(copy))
        (folder.path / "config.json").write_text('{"method": "errands"}')
        return arguments

    return make


async def train(arguments: Any, source: DataSource, rollout_id: int) -> None:
    groups, reasons, _ = await generate_rollout_async(arguments, rollout_id, source.get_samples)
    samples = [sample for group in groups for sample in group]
    rollout_log(rollout_id, arguments, samples, reasons, 2.0)
    train_data(arguments, rollout_id, {})
    logging_utils.log(arguments, {"train/loss": 0.25, "train/step": rollout_id}, "train/step")


async def evaluate(arguments: Any, rollout_id: int) -> None:
    data = await eval_rollout(arguments, rows(6), dict(GREEDY), "parcels")
    eval_log(rollout_id, arguments, data, {})


def written(folder: RunFolder) -> list[Any]:
    return [parse_row(row) for row in folder.metric_rows()]


@pytest.fixture(autouse=True)
def own_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging_utils, "log", logging_utils.log)


async def test_a_run_leaves_the_rows_and_traces_of_a_local_one(
    launched: Args, folder: RunFolder, server: FakeSGLang
) -> None:
    server.misbehave = lambda call: status(400) if call.number == 9 else None
    arguments = launched(n_samples_per_prompt=4)
    source = DataSource(arguments, rows(4))
    await evaluate(arguments, 0)
    await train(arguments, source, 0)
    await evaluate(arguments, 0)
    arguments.rollout_function_path = (
        "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
    )
    await train(arguments, source, 1)
    await evaluate(arguments, 1)
    found = written(folder)
    evals = [row for row in found if isinstance(row, EvalRow)]
    trains = [row for row in found if isinstance(row, TrainRow)]
    assert [row.step for row in evals] == [0, 1, 2]
    assert [row.step for row in trains] == [1, 2]
    # Nobody waits for the longest of a step where steps overlap.
    assert trains[0].waiting_s is not None and trains[1].waiting_s is None
    assert [row.dataset for row in evals] == ["parcels"] * 3
    first = trains[0]
    assert first.coverage == first.ledger["finished"] / first.ledger["started"]
    assert sum(row.ledger["lost"].get("engine", 0) for row in (*trains, *evals)) == 1
    assert first.groups_kept == 2 and first.sampled_tokens > first.trained_tokens / 2 > 0
    assert (first.services, first.train_s) == ({"user": "rules"}, None)
    assert first.reward_mean is not None and 0 < first.reward_mean < 1
    assert evals[0].scores["parcel/1"] == [1.0] and evals[0].eval_s > 0
    traces = [parse_trace(row) for row in folder.episode_rows()]
    assert {(trace.kind, trace.step) for trace in traces} == {
        ("eval", 0), ("train", 1), ("eval", 1), ("train", 2), ("eval", 2)
    }  # fmt: skip
    assert any("best" in trace.why for trace in traces)
    assert any(trace.why == "lost:engine" for trace in traces)
    assert all(trace.segments for trace in traces if trace.score is not None)
    numbers = [row for row in found if isinstance(row, SlimeRow)]
    trained = [row for row in numbers if "train/loss" in row.numbers]
    assert [(row.step, row.numbers["train/loss"]) for row in trained] == [(1, 0.25), (2, 0.25)]
    assert any("rollout/turnwise/score_mean" in row.numbers for row in numbers)


async def test_a_report_is_made_of_a_run_on_the_cluster(
    launched: Args, folder: RunFolder, server: FakeSGLang
) -> None:
    arguments = launched(n_samples_per_prompt=4)
    source = DataSource(arguments, rows(4))
    await evaluate(arguments, 0)
    for rollout_id in range(2):
        await train(arguments, source, rollout_id)
    page = write_report(folder.path).read_text()
    for words in ("Score of the evaluations", "Reward in training", "train/loss", "parcel/1"):
        assert words in page, words


async def test_a_run_that_is_killed_has_all_that_was_logged_and_goes_on_without_what_was_lost(
    launched: Args, folder: RunFolder, server: FakeSGLang, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = launched(n_samples_per_prompt=4)
    source = DataSource(arguments, rows(4))
    await evaluate(arguments, 0)
    for rollout_id in range(3):
        await train(arguments, source, rollout_id)
    before = folder.metrics.read_bytes()
    with folder.metrics.open("ab") as stream:
        stream.write(b'{"step": 4, "ki')
    # The checkpoint is of the first two rollouts; a new process begins with the third.
    monkeypatch.setattr(files, "_files", {})
    monkeypatch.setattr(accounts, "TRAIN", accounts.Accounts())
    await train(arguments, source, 2)
    assert [row.step for row in written(folder) if isinstance(row, TrainRow)] == [1, 2, 3]
    kept = folder.metrics.read_bytes()
    assert kept.startswith(before[: before.index(b'{"step":3')])
    steps = [row["step"] for row in folder.episode_rows() if row["kind"] == "train"]
    assert steps == sorted(steps) and set(steps) == {1, 2, 3}


async def test_versions_of_weights_count_training_steps_across_a_restart(
    launched: Args, folder: RunFolder, server: FakeSGLang
) -> None:
    arguments = launched(n_samples_per_prompt=4)
    server.weight_version = "2"
    await train(arguments, DataSource(arguments, rows(4)), 7)
    traces = [parse_trace(row) for row in folder.episode_rows()]
    # The process began with rollout 7, whose weights are its first.
    assert [trace.info["weight_versions"] for trace in traces] == [[8]] * len(traces)
    for trace in traces:
        prompts, cached = zip(*trace.info["cached"], strict=True)
        assert len(prompts) == trace.metrics["turns"]
        assert sum(prompts) == trace.metrics["prompt_tokens"]
        assert sum(cached) == trace.metrics["cached_tokens"]


async def test_where_the_launchers_folder_is_not_there_rows_go_through_the_log(
    args: Args, folder: RunFolder, server: FakeSGLang, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    arguments = args()
    arguments.turnwise_run_dir = str(folder.path)
    await evaluate(arguments, 0)
    assert f"are written there to {folder.path}" in caplog.text.replace("\n", " ")
    relayed = [row for line in caplog.messages if (row := relayed_row(line)) is not None]
    assert relayed == folder.metric_rows() and relayed[0]["kind"] == "eval"


def test_another_runs_folder_at_the_same_path_is_not_taken_for_the_launchers(
    launched: Args, folder: RunFolder
) -> None:
    arguments = launched()
    assert files.RunFiles(folder.path, arguments.turnwise).shared
    assert not files.RunFiles(folder.path, {**arguments.turnwise, "max_turns": 3}).shared


async def test_a_folder_that_cannot_be_made_is_said_before_the_first_episode(
    args: Args, server: FakeSGLang, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    arguments = args()
    arguments.turnwise_run_dir = str(tmp_path / "file" / "run")
    with pytest.raises(ConfigError, match=r"turnwise_run_dir .*file/run: Not a directory"):
        await generate(arguments, rows(1)[0], dict(GREEDY))
    assert not server.calls


@pytest.mark.parametrize(
    "line",
    [
        "2026 rollout 3: {'a': 1}",
        "turnwise-row",
        "turnwise-row {",
        "turnwise-row [1]",
        "turnwise-row " + "[" * 5000,
        "",
    ],
)
def test_other_lines_of_the_log_are_no_rows(line: str) -> None:
    assert relayed_row(line) is None


def test_a_row_is_found_behind_what_a_logger_writes_around_it() -> None:
    assert relayed_row('[x] a.py:3 - turnwise-row {"step":1,"a":"\\u001b"}\x1b[0m\n') == {
        "step": 1,
        "a": "\x1b",
    }


def test_the_trainers_log_keeps_what_is_a_number_and_passes_all_on(
    launched: Args, folder: RunFolder
) -> None:
    arguments = launched()
    train_data(arguments, 4, {})
    train_data(arguments, 4, {})
    assert not isinstance(logging_utils.log._log, training._TrainerLog)
    given = {"train/step": 9, "a": np.float32(0.5), "b": "text", "c": math.nan, "d": None}
    logging_utils.log(arguments, given, "train/step")
    assert logging_utils.logged[-1] == given
    assert folder.metric_rows() == [
        {"step": 5, "kind": "slime", "numbers": {"train/step": 9.0, "a": 0.5, "c": None}}
    ]


async def test_a_run_without_a_folder_writes_no_file(
    args: Args, server: FakeSGLang, tmp_path: Path, courier: Courier
) -> None:
    await evaluate(args(), 0)
    assert not list(tmp_path.iterdir())
