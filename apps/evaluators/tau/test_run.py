"""The evaluator from options to report, with a scripted method in tau's place."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from taubench import Task
from taubench.fewshot import demonstrated
from turnwise.command import run_command
from turnwise.engine.scripted import ScriptedEngine
from turnwise.episode import Boundary, BoundaryError, Ending, Episode
from turnwise.evaluation import run
from turnwise.evaluation.command import evaluate_benchmark
from turnwise.method import find_method
from turnwise.rollout import Rollout, unplayed
from turnwise.testing import byte_policy

from apps.evaluators.tau.benchmark import TauBench


class Desk:
    """Passes even tasks; counts what it played; fails or stops where it is told."""

    def __init__(self) -> None:
        self.played: list[str] = []
        self.lose: set[str] = set()
        self.interrupt_after: int | None = None

    async def play(self, method: Any, rollout: Rollout[Task], policy: Any) -> Any:
        if self.interrupt_after is not None and len(self.played) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.played.append(rollout.rollout_id)
        if rollout.rollout_id in self.lose:
            return unplayed(rollout, Ending.lost(BoundaryError(Boundary.USER, "429")))
        score = float(rollout.task.index % 2 == 0)
        ids = rollout.rollout_id, rollout.group_id, rollout.task_id
        return Episode(*ids, (), Ending.finished(), score, [])


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk()
    monkeypatch.setattr(run, "load", lambda *given: None)
    monkeypatch.setattr(run, "make_policy", lambda *given: byte_policy(ScriptedEngine([])))
    monkeypatch.setattr(find_method("tau"), "run", lambda *given: desk.play(*given))
    return desk


def evaluate(argv: list[str]) -> int:
    return run_command(partial(evaluate_benchmark, TauBench()), argv)


def argv(folder: Path, *more: str) -> list[str]:
    fixed = ["--hf-checkpoint", "p", "--task-split", "dev", "--trials", "2", "--run-dir"]
    return [*fixed, str(folder), *more]


def summary(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return data


def test_an_evaluation_writes_pass_rates_coverage_and_the_baseline(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert evaluate(argv(folder)) == 0
    data = summary(folder)
    found = {measure["name"]: measure["estimate"] for measure in data["measures"]}
    assert {name: estimate["mean"] for name, estimate in found.items()} == {
        "pass^1": 0.5, "pass^2": 0.5, "pass@2": 0.5
    }  # fmt: skip
    assert {estimate["tasks"] for estimate in found.values()} == {20}
    assert (data["coverage"], data["baselines"], data["trials"]) == (
        1.0,
        {"doing nothing": 0.05},
        2,
    )
    assert (folder / "report.html").is_file()
    out = capsys.readouterr().out
    assert "pass^2  50.0 ± " in out
    assert "doing nothing scores 0.050" in out


def test_an_interrupted_evaluation_goes_on_without_repeating_a_trial(
    desk: Desk, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    desk.interrupt_after = 7
    assert evaluate(argv(folder, "--concurrency", "1")) == 130
    desk.interrupt_after = None
    assert evaluate(argv(folder, "--resume")) == 0
    assert len(desk.played) == len(set(desk.played)) == 40
    assert summary(folder)["measures"][0]["estimate"]["trials"] == 40


def test_a_lost_trial_lowers_the_coverage_and_is_played_again_on_resume(
    desk: Desk, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    desk.lose = {"retail/dev/0#1"}
    assert evaluate(argv(folder)) == 0
    assert summary(folder)["coverage"] == 39 / 40
    assert summary(folder)["measures"][1]["estimate"]["tasks"] == 19
    assert summary(folder)["lost_as_failed"] == (0.5 * 20 - 0.5) / 20
    desk.lose = set()
    assert evaluate(argv(folder, "--resume")) == 0
    data = summary(folder)
    assert (data["coverage"], data["replayed"]) == (1.0, 1)
    assert "1 lost trials were played again" in data["verdict"]
    (row,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert (row["ledger"]["started"], row["ledger"]["lost"]) == (41, {"user": 1})
    assert desk.played[40:] == ["retail/dev/0#1"]


def test_few_shot_is_not_asked_what_its_prompt_shows(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {task.id for task in demonstrated("retail")}
    train = ["--task-split", "train", "--trials", "1", "--agent-strategy", "few-shot"]
    train += ["--include-failing-ground-truth"]
    assert evaluate(argv(tmp_path / "run", *train)) == 0
    assert shown and not shown & {name.rpartition("#")[0] for name in desk.played}
    assert len(desk.played) == 500 - len(shown)
    claim = " ".join(summary(tmp_path / "run")["claim"])
    assert f"{len(shown)} training tasks stand in the prompt as demonstrations" in claim
    airline = ["--env", "airline", "--agent-strategy", "few-shot", "--task-split", "test"]
    assert evaluate(argv(tmp_path / "airline", *airline)) == 2
    assert "airline has no train tasks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("split", "prompt", "words"),
    [
        ("held-out", "compact", "Only tasks whose one write is"),
        ("tune", "compact", "settings were chosen on the tune tasks"),
        ("test", "full", "These are upstream's test tasks."),
    ],
)
def test_a_split_brings_its_prompt_its_offline_user_and_what_the_score_means(
    desk: Desk, tmp_path: Path, split: str, prompt: str, words: str
) -> None:
    assert evaluate(argv(tmp_path / "run", "--task-split", split)) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())["tau"]
    assert (config["prompt"], config["user"]["strategy"]) == (prompt, "offline")
    assert words in " ".join(summary(tmp_path / "run")["claim"])
    assert summary(tmp_path / "run")["benchmark"] == f"tau-bench retail {split}"
    assert summary(tmp_path / "run")["services"]["user"].startswith("offline")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name one policy"),
        (["--hf-checkpoint", "a", "--env", "airline", "--task-split", "dev"], "no split dev"),
        (["--hf-checkpoint", "a", "--env", "airline", "--task-split", "tune"], "compact shows ret"),
        (["--hf-checkpoint", "a", "--task-split", "tune", "--prompt", "full"], "--prompt compact"),
        (["--hf-checkpoint", "a", "--task-split", "all"], "--task-split"),
        (["--hf-checkpoint", "a", "--env", "tau2-airline"], "is evaluated by apps/evaluators/tau2"),
        (["--hf-checkpoint", "a", "--trails", "2"], "--trials"),
        (["--hf-checkpoint", "a", "--user.strategy", "human"], "needs --concurrency 1"),
    ],
)
def test_options_that_make_no_sense_exit_with_2(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(options) == 2
    assert words in capsys.readouterr().err
