"""The run folder is never shared by two runs, and a resumed run writes no step twice."""

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.run.folder import RunFolder, require_space, write_whole
from turnwise.run.summary import (
    Change,
    EvalSummary,
    Measure,
    Summary,
    needed_errors,
    read_summary,
    write_summary,
)
from turnwise.trials import Estimate


def make(path: Path) -> RunFolder:
    return RunFolder.create(path / "run", "tau", {"seed": 7})


def test_a_new_folder_holds_the_resolved_configuration(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "tau", {"seed": 7, "lr": math.nan, "p": Path("x")})
    assert folder.checkpoints.is_dir() and folder.logs.is_dir()
    assert json.loads(folder.config.read_text()) == {"seed": 7, "lr": None, "p": "x"}
    assert RunFolder.open(folder.path).read_config() == {"seed": 7, "lr": None, "p": "x"}


def test_the_default_name_is_method_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "20260102-030405")
    names = [RunFolder.create(None, "tau", {}).path for _ in range(3)]
    stem = "tau-20260102-030405"
    assert names == [Path("runs") / name for name in (stem, f"{stem}-2", f"{stem}-3")]


def test_an_empty_folder_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert make(tmp_path).config.is_file()


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path)
    before = folder.config.read_bytes()
    with pytest.raises(ConfigError, match="exists and is not empty; .* add --resume"):
        RunFolder.create(folder.path, "tau", {"seed": 8})
    assert folder.config.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--run-dir .*file.*: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", "tau", {})
    with pytest.raises(ConfigError, match=r"--run-dir .*file: is a file; name a folder"):
        RunFolder.create(tmp_path / "file", "tau", {})
    with pytest.raises(ConfigError, match=r"file: is a file; name the folder of a run"):
        RunFolder.open(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "said"), [("gone", "no such folder"), (".", "not a run folder: it has no config")]
)
def test_what_is_no_run_folder_is_not_opened(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RunFolder.open(tmp_path / name)


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_broken_configuration_names_its_file(tmp_path: Path, text: str) -> None:
    folder = make(tmp_path)
    folder.config.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        folder.read_config()


def test_a_resumed_run_has_no_step_twice(tmp_path: Path) -> None:
    folder = make(tmp_path)
    for step in range(5):
        folder.append_metrics({"step": step, "kind": "train"})
        folder.append_episode({"step": step, "kind": "train", "why": "best"})
        folder.append_episode({"step": step, "kind": "train", "why": "worst"})
    with folder.episodes.open("a") as stream:
        stream.write('{"step":5,"wh')
    cut = folder.cut_after(2)
    assert (cut.rows, cut.torn) == (6, {"episodes.jsonl": 13})
    assert str(cut) == (
        "6 rows of later steps dropped, torn last line of episodes.jsonl cut (13 bytes)"
    )
    folder.append_metrics({"step": 3, "kind": "train"})
    folder.append_episode({"step": 3, "kind": "train", "why": "best"})
    assert [row["step"] for row in folder.metric_rows()] == [0, 1, 2, 3]
    assert [row["step"] for row in folder.episode_rows()] == [0, 0, 1, 1, 2, 2, 3]


def test_resuming_a_clean_run_at_its_end_drops_nothing(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.append_metrics({"step": 1})
    assert str(folder.cut_after(1)) == "nothing to drop"
    assert folder.metric_rows() == [{"step": 1}]


def test_a_broken_row_stops_a_resume(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.metrics.write_text('{"step":1}\nnot json\n{"step":2}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl:2: not valid JSON"):
        folder.cut_after(1)


def test_too_little_disk_says_what_is_needed_and_what_is_there(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "there" / "yet", 1, "a checkpoint")
    with pytest.raises(PreflightError, match=r"1000000\.0 GB needed for 3 checkpoints, .* GB free"):
        require_space(tmp_path / "run", 10**15, "3 checkpoints")


def test_a_file_is_written_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text() == "old"


def summary(mean: float, stderr: float) -> Summary:
    return Summary(
        method="tau",
        before=Estimate(0.46, 0.04, 32, 128),
        after=Estimate(0.46 + mean, 0.04, 32, 128),
        difference=Estimate(mean, stderr, 32, 256),
        baselines={"doing nothing": 0.0},
        trials=4,
        steps=20,
        seed=7,
        services={"user": "offline"},
        coverage=1.0,
        claim=("Held out.",),
    )


@pytest.mark.parametrize(
    ("tasks", "needed"), [(4, 9.22), (5, 6.62), (10, 4.09), (47, 3.17), (10_000, 3.0)]
)
def test_a_rise_over_few_tasks_must_be_as_rare_as_one_over_many(tasks: int, needed: float) -> None:
    # Quantiles of Student's t at the normal distribution's chance of 3 standard errors.
    assert needed_errors(tasks) == pytest.approx(needed, rel=0.1)
    difference = Estimate(0.4, 0.1, tasks, 2 * tasks)
    made = msgspec.structs.replace(summary(0.4, 0.1), difference=difference)
    assert made.learned is (needed < 4)
    assert made.learned or "No rise is shown" in made.verdict()


def test_a_run_of_no_steps_has_a_score_and_no_verdict_on_learning() -> None:
    made = msgspec.structs.replace(summary(0.0, math.nan), steps=0)
    assert made.verdict() == "Nothing was trained: held-out score 46.0 ± 4.0 %."


@pytest.mark.parametrize(
    ("mean", "stderr", "learned", "said"),
    [
        (
            0.20,
            0.04,
            True,
            r"It learned: held-out score 46.0 ± 4.0 % -> 66.0 ± 4.0 %, \+20.0 ±",
        ),
        (0.10, 0.04, False, "No rise is shown"),
        (-0.2, 0.04, False, "It got worse"),
        (0.10, math.nan, False, "No rise is shown: .* no error can be given"),
        (0.00, 0.0, False, "No rise is shown: .* no error can be given"),
        (1.00, 0.0, True, r"It learned: .*\+100.0 points, paired over 32 tasks that changed alike"),
        (-1.0, 0.0, False, "It got worse"),
        (math.nan, math.nan, False, "Nothing can be said"),
    ],
)
def test_the_verdict_says_what_the_numbers_allow(
    tmp_path: Path, mean: float, stderr: float, learned: bool, said: str
) -> None:
    folder = make(tmp_path)
    made = summary(mean, stderr)
    assert made.learned is learned
    assert re.match(said, made.verdict())
    write_summary(folder, made)
    row = json.loads(folder.summary.read_text(), parse_constant=pytest.fail)
    assert row["verdict"] == made.verdict() and row["learned"] is learned
    back = read_summary(folder)
    assert isinstance(back, Summary)
    assert back.verdict() == made.verdict()


def test_other_numbers_are_told_with_their_paired_change(tmp_path: Path) -> None:
    cost = Change(
        before=Estimate(0.0004321, 0.00002, 32, 128),
        after=Estimate(0.0002, 0.00001, 32, 128),
        difference=Estimate(-0.00023, 0.00002, 32, 256),
    )
    unknown = Estimate(math.nan, math.nan, 0, 0)
    never = Change(before=unknown, after=unknown, difference=unknown)
    made = msgspec.structs.replace(summary(0.2, 0.04), compared={"cost_usd": cost, "never": never})
    said = made.text().splitlines()
    assert said[1] == (
        "Cost_usd 0.000432 ± 2e-05 -> 0.0002 ± 1e-05, -0.00023 ± 2e-05 (-11.5 standard errors)."
    )
    assert said[2] == "Never not known."
    write_summary(folder := make(tmp_path), made)
    back = read_summary(folder)
    assert isinstance(back, Summary) and back.compared["cost_usd"] == cost
    assert math.isnan(back.compared["never"].difference.mean)


def test_an_evaluation_says_what_it_lost(tmp_path: Path) -> None:
    folder = make(tmp_path)
    made = EvalSummary(
        benchmark="tau-bench retail test",
        policy="step_20",
        measures=(
            Measure(name="pass^1", estimate=Estimate(0.5, 0.05, 115, 450)),
            Measure(name="pass^2", estimate=Estimate(0.3, math.nan, 110, 440)),
        ),
        lost_as_failed=0.489,
        trials=4,
        baselines={},
        coverage=0.978,
        services={"user": "offline"},
    )
    assert made.verdict() == (
        "step_20 has pass^1 50.0 ± 5.0 % on tau-bench retail test, over 115 tasks and 450 trials;"
        " 2.2 % of the trials were lost and are not in it, counted as failed they make it 48.9 %."
    )
    write_summary(folder, made)
    back = read_summary(folder)
    assert isinstance(back, EvalSummary)
    assert back.measures[0] == made.measures[0]
    assert math.isnan(back.measures[1].estimate.stderr)


def test_a_run_that_goes_on_has_no_verdict_yet(tmp_path: Path) -> None:
    folder = make(tmp_path)
    write_summary(folder, summary(0.2, 0.04))
    folder.cut_after(20)
    assert read_summary(folder) is None


@pytest.mark.parametrize("text", ["{", "{}", '{"kind":"eval","policy":3}'])
def test_a_broken_summary_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    folder = make(tmp_path)
    folder.summary.write_text(text)
    with pytest.raises(ConfigError, match=r"summary\.json"):
        read_summary(folder)


def test_traces_are_on_the_disk_before_the_row_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, synced = make(tmp_path), list[tuple[str, int]]()
    real = os.fsync

    def note(descriptor: int) -> None:
        real(descriptor)
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((name.name, name.stat().st_size if name.is_file() else 0))

    monkeypatch.setattr(os, "fsync", note)
    for step in (1, 2):
        folder.append({"step": step, "kind": "train"}, [{"step": step, "why": "best"}] * 2)
    assert synced == [
        ("episodes.jsonl", 48),
        (folder.path.name, 0),
        ("metrics.jsonl", 26),
        (folder.path.name, 0),
        ("episodes.jsonl", 96),
        ("metrics.jsonl", 52),
    ]


def test_traces_whose_row_was_never_written_go_when_the_run_goes_on(tmp_path: Path) -> None:
    folder = make(tmp_path)
    for step in (0, 1):
        folder.append({"step": step, "kind": "train"}, [{"step": step, "kind": "train"}])
    folder.append({"step": 0, "kind": "eval"}, [{"step": 0, "kind": "eval"}])
    # Killed between the two files.
    folder.append_episode({"step": 1, "kind": "eval"})
    assert folder.cut_after(1).rows == 1
    kinds = [(row["kind"], row["step"]) for row in folder.episode_rows()]
    assert kinds == [("train", 0), ("train", 1), ("eval", 0)]


def test_processes_that_append_to_one_file_tear_no_row(tmp_path: Path) -> None:
    folder = make(tmp_path)
    script = (
        "import sys; from pathlib import Path; from turnwise.run.folder import RunFolder\n"
        "folder = RunFolder(Path(sys.argv[1]))\n"
        "for n in range(40): folder.append_metrics({'step': n, 'who': sys.argv[2] * 3000})"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(folder.path), who]) for who in "abc"
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    rows = folder.metric_rows()
    assert len(rows) == 120
    for who in "abc":
        assert [row["step"] for row in rows if row["who"][0] == who] == list(range(40))


@pytest.mark.parametrize("line", ['{"kind": [1], "step": 1}', '{"kind": null, "step": 1}'])
def test_a_kind_of_another_shape_is_no_traceback(tmp_path: Path, line: str) -> None:
    folder = RunFolder.create(tmp_path / "run", "own", {})
    folder.metrics.write_text(line + "\n")
    folder.episodes.write_text(line + "\n")
    assert folder.cut_after(1).rows == 0


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_number_that_is_none_names_its_line(tmp_path: Path, number: str) -> None:
    folder = RunFolder.create(tmp_path / "run", "own", {})
    folder.metrics.write_text(f'{{"kind": "eval", "step": 1, "eval_s": {number}}}\n')
    with pytest.raises(ConfigError, match="metrics.jsonl:1: not valid JSON"):
        folder.metric_rows()
