"""A job of slime's takes requests through its run folder: what its hooks can do, and why not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slime.observability import logging_utils  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    generate_rollout_async,
)
from slime_standin.contract import DataSource
from slime_standin.errands import rows
from turnwise.run import status as run_status
from turnwise.run.control import ask, make_request, read_history
from turnwise.run.folder import RunFolder
from turnwise.run.metrics import EventRow, parse_row
from turnwise.run.status import read_status
from turnwise.run.watching import StatusWriter
from turnwise.slime import control, dynamic_filter, generate, rollout_log, train_data
from turnwise.slime.control import ClusterControl, control_of
from turnwise.slime.hooks import read_row
from turnwise.slime.shared import get_shared
from turnwise.testing.servers import FakeSGLang

Args = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing looks but the test, and slime's tracker is as it was after it."""
    monkeypatch.setattr(logging_utils, "log", logging_utils.log)
    monkeypatch.setattr(StatusWriter, "_run", lambda self: None)
    monkeypatch.setattr(control, "LOOK_S", 0.01)
    yield
    control.close_controls()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def launched(args: Args, run_dir: Path) -> Args:
    """slime's arguments as the launcher gives them, with its run folder on this machine."""

    def make(**changes: Any) -> Any:
        arguments = args(**changes)
        arguments.turnwise_run_dir = str(run_dir)
        run_dir.mkdir(exist_ok=True)
        copy = {"turnwise": arguments.turnwise, "turnwise_run_dir": str(run_dir)}
        (run_dir / "turnwise.json").write_text(json.dumps(copy))
        (run_dir / "config.json").write_text('{"method": "errands"}')
        return arguments

    return make


async def opened(arguments: Any) -> ClusterControl:
    await get_shared(arguments)
    found = control_of(arguments)
    assert found is not None
    return found


async def roll(arguments: Any, source: DataSource, rollout_id: int) -> list[Any]:
    groups, reasons, _ = await generate_rollout_async(arguments, rollout_id, source.get_samples)
    samples = [sample for group in groups for sample in group]
    rollout_log(rollout_id, arguments, samples, reasons, 2.0)
    return samples


def outcomes(run_dir: Path) -> list[tuple[str, str]]:
    return [(one.command, one.answer) for one in read_history(run_dir)]


async def test_a_pause_holds_the_next_rollout_until_it_is_resumed(
    launched: Args, run_dir: Path, server: FakeSGLang
) -> None:
    arguments = launched()
    found, source = await opened(arguments), DataSource(arguments, rows(8))
    ask(run_dir, make_request("pause"))
    found.look()
    assert outcomes(run_dir) == [("pause", "noted")]
    # Nothing is under way: the first episode is held already.
    task = asyncio.create_task(roll(arguments, source, 0))
    while found.writer.state != "paused":
        await asyncio.sleep(0.01)
    found.writer.tick()
    status = read_status(run_dir)
    assert status is not None and status.state == "paused" and status.backend == "slime"
    assert not server.calls and not task.done() and run_status.is_paused(run_dir)
    ask(run_dir, make_request("resume"))
    found.look()
    assert len(await task) == 8
    assert outcomes(run_dir)[1:] == [("pause", "done"), ("resume", "done")]


async def test_a_pause_in_a_rollout_lets_it_end(
    launched: Args, run_dir: Path, server: FakeSGLang
) -> None:
    arguments = launched()
    found, source = await opened(arguments), DataSource(arguments, rows(8))
    server.more_meta = lambda call, turn: paused() or {}
    sent: list[str] = []

    def paused() -> None:
        if not sent:
            ask(run_dir, make_request("pause"))
            found.look()
            sent.append("pause")

    await roll(arguments, source, 0)
    assert found.writer.state == "paused" and found.writer.step == 1
    assert outcomes(run_dir) == [("pause", "noted"), ("pause", "done")]
    calls = len(server.calls)
    task = asyncio.create_task(roll(arguments, source, 1))
    await asyncio.sleep(0.1)
    assert len(server.calls) == calls
    ask(run_dir, make_request("resume"))
    found.look()
    await task
    assert len(server.calls) > calls


@pytest.mark.parametrize(
    ("command", "arguments", "why"),
    [
        ("eval", {}, "--eval-interval"),
        ("save", {}, "--save-interval"),
        ("drop", {"t": ""}, "has dealt no training task of this name"),
        ("set", {"lr": "1"}, "Megatron"),
        ("set", {"concurrency": "1"}, "semaphore"),
        ("set", {"rollout-temperature": "1"}, "ranks divide"),
        ("stop", {}, "through Ray"),
        ("set", {"user.spend-cap-usd": "1"}, "there are: "),
    ],
)
async def test_what_slime_can_not_do_is_refused_with_the_reason(
    launched: Args, run_dir: Path, command: Any, arguments: dict[str, str], why: str
) -> None:
    found = await opened(launched())
    ask(run_dir, make_request(command, arguments))
    found.look()
    (outcome,) = read_history(run_dir)
    assert outcome.answer == "refused" and why in outcome.said


async def test_a_dropped_task_is_cancelled_before_it_begins_and_dropped_again_by_the_next_job(
    launched: Args, run_dir: Path, server: FakeSGLang
) -> None:
    arguments = launched()
    found, source = await opened(arguments), DataSource(arguments, rows(2))
    await roll(arguments, source, 0)
    names = {one["task_id"] for one in RunFolder(run_dir).episode_rows()}
    gone = sorted(names)[0]
    ask(run_dir, make_request("drop", {gone: ""}))
    found.look()
    samples = await roll(arguments, source, 1)
    assert outcomes(run_dir) == [("drop", "done")]
    assert len(samples) == 8 and gone not in {
        one.metadata["turnwise"]["task_id"] for one in samples
    }
    last = RunFolder(run_dir).metric_rows()[-2]
    assert last["ledger"]["cancelled"] >= 4 and last["groups_dropped"]["too_few_scored"] >= 1
    # However many groups in a row are left out so, no service is gone.
    left_out = next(group for group in source.get_samples(2) if read_row(group[0]).id == gone)
    ended = [await generate(arguments, sample, {}) for sample in left_out]
    assert not any(dynamic_filter(arguments, ended).keep for _ in range(20))
    for task in sorted(found._tasks - {gone}):
        ask(run_dir, make_request("drop", {task: ""}))
    found.look()
    assert outcomes(run_dir)[-1] == ("drop", "refused")
    assert "no task would be left" in read_history(run_dir)[-1].said
    control.close_controls()
    again = control_of(arguments)
    assert again is not None and not again.takes(gone) and again.takes("another")


async def test_the_status_has_the_engines_and_the_workers_last_sign_of_life(
    launched: Args, run_dir: Path, server: FakeSGLang
) -> None:
    arguments = launched()
    found = await opened(arguments)
    train_data(arguments, 4, {})
    found._asked_engines = -1e9
    await asyncio.to_thread(found.writer.tick)
    status = read_status(run_dir)
    assert status is not None
    signs = {one.name.split()[0]: one.said for one in status.signs}
    assert signs["engine"] == "" and signs["trainer"] == "begins training step 5"
    await server.__aexit__(None, None, None)
    found._asked_engines = -1e9
    await asyncio.to_thread(found.writer.tick)
    status = read_status(run_dir)
    assert status is not None
    assert any("URLError" in one.said for one in status.signs)
    await server.__aenter__()


async def test_a_stall_is_a_row_of_the_metrics(launched: Args, run_dir: Path) -> None:
    found = await opened(launched())
    found._stalled("no episode has ended for 90 s", 90.0, False)
    (row,) = RunFolder(run_dir).metric_rows()
    assert parse_row(row) == EventRow(
        step=0, event="stall", at=row["at"], seconds=90.0, text="no episode has ended for 90 s"
    )


async def test_without_the_launchers_folder_there_is_no_control(args: Args, tmp_path: Path) -> None:
    arguments = args()
    assert control_of(arguments) is None
    arguments.turnwise_run_dir = str(tmp_path / "elsewhere")
    assert control_of(arguments) is None
