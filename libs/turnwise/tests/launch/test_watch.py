"""What ends a run on a cluster that goes wrong."""

from pathlib import Path

import pytest
from turnwise.command import StopRun
from turnwise.launch.watch import FolderWatch
from turnwise.ledger import LedgerRow
from turnwise.run.jsonl import append_rows, keep_until
from turnwise.run.metrics import EventRow, MetricsRow, SlimeRow, TrainRow, as_row
from turnwise.run.watching import StatusWriter
from turnwise.stopping import MIN_PATIENCE_S, RowWatch, StopLimits

GOOD: LedgerRow = {
    "started": 8,
    "finished": 7,
    "stopped": {},
    "lost": {"engine": 1},
    "cancelled": 0,
}


def train(step: int, ledger: LedgerRow = GOOD) -> TrainRow:
    return TrainRow(
        step=step,
        reward_mean=0.5,
        reward_stderr=0.1,
        coverage=0.9,
        ledger=ledger,
        endings={},
        metrics={},
        services={},
        loss=None,
        kl=None,
        entropy=None,
        clip_fraction=None,
        grad_norm=None,
        max_logprob_diff=None,
        trained_tokens=100,
        sampled_tokens=100,
        tokens_per_s=1.0,
        groups=1,
        groups_kept=1,
        groups_dropped={},
        rollout_s=1.0,
        train_s=None,
        loop_lag_p50_ms=0.1,
        loop_lag_max_ms=0.1,
    )


def slime(step: int, **numbers: float | None) -> SlimeRow:
    return SlimeRow(step=step, numbers={f"train/{name}": value for name, value in numbers.items()})


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (slime(4, train_rollout_logprob_abs_diff=0.2), "log-probs of the trained tokens, on aver"),
        (slime(4, train_rollout_logprob_abs_diff=None), "abs_diff NaN or infinite"),
        (slime(4, loss=None, grad_norm=1.0), "not finite: train/loss NaN or infinite"),
        (slime(4, grad_norm=float("inf")), "not finite: train/grad_norm inf"),
        (train(4, {**GOOD, "finished": 6}), "the ledger does not balance: 8 started, but 6 fin"),
        (
            train(4, {**GOOD, "finished": 0, "lost": {"user": 8}}),
            "none of 8 episodes was scored: 8 lost to user",
        ),
        (train(4, {**GOOD, "finished": 0, "stopped": {"turns": 7}}), ""),
        (train(4, {**GOOD, "started": 2, "finished": 0, "lost": {}, "cancelled": 2}), ""),
        (slime(4, train_rollout_logprob_abs_diff=0.001, loss=-0.1, grad_norm=0.0), ""),
        (train(4), ""),
    ],
)
def test_a_row_that_shows_a_run_going_wrong_ends_it_with_the_cause(
    row: MetricsRow, said: str
) -> None:
    watch = RowWatch(StopLimits())
    if not said:
        watch.take(row)
        return
    with pytest.raises(StopRun) as stop:
        watch.take(row)
    assert f"{row.kind} row of step 4: " in str(stop.value) and said in str(stop.value)


def test_the_limit_of_the_log_probs_is_the_runs_own() -> None:
    row = slime(1, train_rollout_logprob_abs_diff=0.2)
    RowWatch(StopLimits(max_logprob_diff=0.3)).take(row)
    with pytest.raises(StopRun, match="differ by 0.2 .*--max-logprob-diff 0.05"):
        RowWatch(StopLimits(max_logprob_diff=0.05)).take(row)


def test_a_run_that_stands_still_for_many_times_its_usual_step_ends() -> None:
    clock = Clock()
    watch = RowWatch(StopLimits(patience=20), clock)
    for step, now in enumerate((4000.0, 4100.0, 4200.0, 4400.0), start=1):
        clock.now = now
        watch.take(train(step))
    clock.now = 4400 + 20 * 100
    watch.wait()
    clock.now += 1
    with pytest.raises(StopRun, match="no new row for 2001 s, where a step takes 100 s"):
        watch.wait()


def test_a_row_of_any_kind_is_progress() -> None:
    clock = Clock()
    watch = RowWatch(StopLimits(patience=2), clock)
    for step in range(1, 6):
        clock.now = step * 1000.0
        watch.take(train(step))
    clock.now += MIN_PATIENCE_S
    watch.take(slime(5, loss=0.1))
    clock.now += 1999
    watch.wait()


def test_neither_a_slow_start_nor_a_long_evaluation_of_quick_steps_ends_a_run() -> None:
    clock = Clock()
    watch = RowWatch(StopLimits(), clock)
    clock.now = 1e6
    watch.wait()
    for step in range(1, 9):
        clock.now += 2
        watch.take(train(step))
    clock.now += MIN_PATIENCE_S
    watch.wait()


def write(folder: Path, *rows: MetricsRow) -> None:
    append_rows(folder / "metrics.jsonl", [as_row(row) for row in rows])


def test_what_an_earlier_job_of_the_folder_broke_off_for_does_not_end_the_next(
    tmp_path: Path,
) -> None:
    write(tmp_path, train(1), train(2), slime(2, train_rollout_logprob_abs_diff=9.0))
    watch = FolderWatch(tmp_path, RowWatch(StopLimits()))
    watch.look()
    keep_until(tmp_path / "metrics.jsonl", 1)
    write(tmp_path, train(2))
    watch.look()
    write(tmp_path, slime(2, train_rollout_logprob_abs_diff=8.0))
    with pytest.raises(StopRun, match="differ by 8"):
        watch.look()


def test_rows_are_read_once_they_are_whole_and_foreign_lines_end_nothing(tmp_path: Path) -> None:
    watch = FolderWatch(tmp_path, RowWatch(StopLimits()))
    watch.look()
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind": "news"}\n{"step":\n{"step":1,"kind":"slime","numbers":{"train/lo')
    watch.look()
    with path.open("ab") as stream:
        stream.write(b'ss":null}}\n')
    with pytest.raises(StopRun, match="train/loss"):
        watch.look()


def test_a_run_that_somebody_paused_is_not_ended_for_standing_still(tmp_path: Path) -> None:
    clock = Clock()
    watch = FolderWatch(tmp_path, RowWatch(StopLimits(), clock))
    for step in range(1, 6):
        clock.now += 10
        write(tmp_path, train(step))
        watch.look()
    writer = StatusWriter(tmp_path, backend="slime")
    writer.state = "paused"
    writer.tick()
    clock.now += 1e5
    watch.look()
    writer.state = "running"
    writer.tick()
    watch.look()
    clock.now += 1e5
    with pytest.raises(StopRun, match="no progress"):
        watch.look()


def test_a_stall_that_is_told_is_no_progress(tmp_path: Path) -> None:
    clock = Clock()
    watch = FolderWatch(tmp_path, RowWatch(StopLimits(), clock))
    for step in range(1, 6):
        clock.now += 10
        write(tmp_path, train(step))
        watch.look()
    clock.now += 1e5
    write(tmp_path, EventRow(step=5, event="stall", at=0.0, seconds=1.0, text="nothing ends"))
    with pytest.raises(StopRun, match="no progress"):
        watch.look()
