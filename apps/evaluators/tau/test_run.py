"""The evaluator from options to report, with a scripted player in the policy's place."""

import json
from pathlib import Path
from typing import Any

import pytest
from apps.evaluators.tau.run import Player, evaluate_here
from taubench import Task
from taubench.fewshot import demonstrated
from turnwise.episode import Boundary, BoundaryError, Ending, Episode
from turnwise.rollout import Rollout

from apps.evaluators.tau import run as evaluator


class Desk:
    """Passes even tasks; counts what it played; fails or stops where it is told."""

    def __init__(self) -> None:
        self.played: list[str] = []
        self.lose: set[str] = set()
        self.interrupt_after: int | None = None

    async def play(self, rollout: Rollout[Task]) -> Episode:
        if self.interrupt_after is not None and len(self.played) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.played.append(rollout.rollout_id)
        ending, score = Ending.finished(), float(rollout.task.index % 2 == 0)
        if rollout.rollout_id in self.lose:
            return self._episode(rollout, Ending.lost(BoundaryError(Boundary.USER, "429")), None)
        return self._episode(rollout, ending, score)

    def _episode(self, rollout: Rollout[Task], ending: Ending, score: float | None) -> Episode:
        ids = rollout.rollout_id, rollout.group_id, rollout.task_id
        return Episode(*ids, (), ending, score, [])

    async def close(self) -> None:
        pass


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk()

    def make(options: object, services: object) -> Player:
        return Player(desk.play, None, desk.close)

    monkeypatch.setattr(evaluator, "make_player", make)
    return desk


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
    assert evaluate_here(argv(folder)) == 0
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
    assert "pass^2  0.500" in out
    assert "doing nothing scores 0.050" in out


def test_an_interrupted_evaluation_goes_on_without_repeating_a_trial(
    desk: Desk, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    desk.interrupt_after = 7
    assert evaluate_here(argv(folder, "--concurrency", "1")) == 130
    desk.interrupt_after = None
    assert evaluate_here(argv(folder, "--resume")) == 0
    assert len(desk.played) == len(set(desk.played)) == 40
    assert summary(folder)["measures"][0]["estimate"]["trials"] == 40


def test_a_lost_trial_lowers_the_coverage_and_is_played_again_on_resume(
    desk: Desk, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    desk.lose = {"retail/dev/0#1"}
    assert evaluate_here(argv(folder)) == 0
    assert summary(folder)["coverage"] == 39 / 40
    assert summary(folder)["measures"][1]["estimate"]["tasks"] == 19
    assert summary(folder)["lost_as_failed"] == (0.5 * 20 - 0.5) / 20
    desk.lose = set()
    assert evaluate_here(argv(folder, "--resume")) == 0
    data = summary(folder)
    assert (data["coverage"], data["replayed"]) == (1.0, 1)
    assert "1 lost trials were played again" in data["verdict"]
    (row,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert (row["ledger"]["started"], row["ledger"]["lost"]) == (41, {"user": 1})
    assert desk.played[40:] == ["retail/dev/0#1"]


def test_trials_of_two_settings_do_not_mix(desk: Desk, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert evaluate_here(argv(folder)) == 0
    with pytest.raises(ValueError, match="--temperature is 0.5, .* started with 1.0"):
        evaluate_here(argv(folder, "--resume", "--temperature", "0.5"))


def test_a_run_is_compared_with_another_over_the_same_tasks(desk: Desk, tmp_path: Path) -> None:
    assert evaluate_here(argv(tmp_path / "a")) == 0
    assert evaluate_here(argv(tmp_path / "b", "--compare-with", str(tmp_path / "a"))) == 0
    compared = summary(tmp_path / "b")["compared"]
    assert compared.startswith("Against a: +0.0 points, paired over 20 tasks")
    assert "no difference is shown" in compared
    other = ["--task-split", "test", "--compare-with", str(tmp_path / "a")]
    with pytest.raises(ValueError, match="--compare-with .* are in one of the two runs alone"):
        evaluate_here(argv(tmp_path / "c", *other))
    with pytest.raises(ValueError, match="absent: no such folder"):
        evaluate_here(argv(tmp_path / "d", "--compare-with", str(tmp_path / "absent")))
    assert not (tmp_path / "d").exists()


def test_few_shot_is_not_asked_what_its_prompt_shows(desk: Desk, tmp_path: Path) -> None:
    shown = {task.id for task in demonstrated("retail")}
    train = ["--task-split", "train", "--trials", "1", "--agent-strategy", "few-shot"]
    assert evaluate_here(argv(tmp_path / "run", *train)) == 0
    assert shown and not shown & {name.rpartition("#")[0] for name in desk.played}
    assert len(desk.played) == 500 - len(shown)
    claim = summary(tmp_path / "run")["claim"]
    assert f"{len(shown)} tasks stand in the prompt as demonstrations and are left out." in claim
    airline = ["--env", "airline", "--agent-strategy", "few-shot", "--task-split", "test"]
    with pytest.raises(ValueError, match="agent-strategy few-shot: .*airline has no train tasks"):
        evaluate_here(argv(tmp_path / "airline", *airline))


def test_a_folder_with_results_is_not_written_over(desk: Desk, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert evaluate_here(argv(folder)) == 0
    with pytest.raises(ValueError, match="--run-dir"):
        evaluate_here(argv(folder))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name one policy"),
        (["--hf-checkpoint", "a", "--base-url", "b"], "name one policy"),
        (["--base-url", "b"], "--base-url needs --model"),
        (["--hf-checkpoint", "a", "--env", "airline", "--task-split", "dev"], "no split dev"),
        (["--hf-checkpoint", "a", "--env", "airline", "--task-split", "tune"], "is of retail"),
        (["--hf-checkpoint", "a", "--resume"], "resume needs run-dir"),
        (["--hf-checkpoint", "a", "--trails", "2"], "--trials"),
        (["--hf-checkpoint", "a", "--user.strategy", "human"], "human needs concurrency 1"),
    ],
)
def test_options_that_make_no_sense_exit_with_2(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        evaluate_here(options)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err
