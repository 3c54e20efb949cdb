"""The command of a method: no tools, no user, from the command line to the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from turnwise.arguments import of_any_method
from turnwise.command import RunError
from turnwise.config import ConfigError
from turnwise.local.command import method_before, train_method
from turnwise.rollout import Rollout

from local.letters import Letters, letters

FAST = [
    "--num-rollout", "2", "--rollout-batch-size", "2", "--n-samples-per-prompt", "4",
    "--n-samples-per-eval-prompt", "1", "--rollout-max-response-len", "5", "--threads", "1",
    "--rollout-max-context-len", "120", "--lr", "1e-3", "--objective", "turn-mean",
]  # fmt: skip


@pytest.fixture
def method(policy_folder: Path) -> type[Letters]:
    made = letters()
    made.shipped = policy_folder
    return made


@pytest.fixture
def run(method: type[Letters], tmp_path: Path) -> Callable[..., int]:
    def start(*words: str, folder: str = "run") -> int:
        return train_method(method, [*FAST, "--run-dir", str(tmp_path / folder), *words])

    return start


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_a_method_without_tools_or_users_trains_from_command_to_report(
    run: Callable[..., int],
    method: type[Letters],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run() == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Training the shipped policy on 4 letter tasks: 2 steps of 2 prompts x 4" in out
    assert "Sandbox none, coder rules, seed 1234" in out
    assert "Always a scores 100.0 % here. Never a scores 25.0 % here." in out
    assert "Sandbox: none; coder: rules - Letters only." in out
    assert "(always a 1.000, never a 0.250)" in out
    assert (method.opened, method.closed) == (1, 1)
    train = [row for row in rows(tmp_path / "run") if row["kind"] == "train"]
    assert [row["step"] for row in train] == [1, 2]
    for row in train:
        assert row["metrics"]["turns"] == {"mean": 2.0, "episodes": 8}
        assert row["services"] == {"sandbox": "none", "coder": "rules"}
        # Every turn of every kept rollout is trained on, and the trainer computes what was sampled.
        assert row["groups_kept"] == 2 and 8 * 2 < row["trained_tokens"] <= row["sampled_tokens"]
        assert row["max_logprob_diff"] < 1e-4
    page = (tmp_path / "run" / "report.html").read_text()
    assert "always a" in page and "never a" in page and "Turns per episode" in page


def test_a_file_of_a_run_on_slime_is_told_as_such(run: Callable[..., int], tmp_path: Path) -> None:
    path = tmp_path / "slime.toml"
    path.write_text('[model]\nname = "qwen3-4B"\n[optimizer]\nlr = 1e-6\n')
    with pytest.raises(ConfigError, match=r"\[optimizer\]: a section of a run on slime"):
        run("--config", str(path))


def test_a_resumed_run_keeps_the_options_that_it_was_started_with(
    run: Callable[..., int], method: type[Letters], tmp_path: Path
) -> None:
    assert run("--seed", "7", "--lr-decay-style", "linear") == 0
    with pytest.raises(ConfigError, match="--lr is 0.5, the run in .* started with 0.001"):
        run("--resume", "--lr", "0.5")
    longer = ("--resume", "--num-rollout", "3", "--letters", "AZ")
    with pytest.raises(ConfigError, match="began with 2, over which its learning rate falls"):
        run(*longer)
    assert run(*longer, "--override-opt-param-scheduler") == 0
    steps = [row["step"] for row in rows(tmp_path / "run") if row["kind"] == "train"]
    assert steps == [1, 2, 3]
    assert method.opened == method.closed


def test_a_run_that_goes_on_or_is_replayed_names_its_own_method(tmp_path: Path) -> None:
    named: list[tuple[str, Sequence[str]]] = []
    train = of_any_method(lambda method, argv: named.append((method, argv)), method_before)
    (tmp_path / "config.json").write_text('{"method": "letters"}')
    line = ["--run-dir", str(tmp_path)]
    train([*line, "--resume"])
    start = {"method": "my:Letters", "file": None, "preset": False, "changed": None}
    (tmp_path / "start.json").write_text(json.dumps(start))
    train([*line, "--resume"])
    train([*line, "--replay=3"])
    train([*line, "--resume", "--method", "moved:Letters"])
    assert [method for method, _ in named] == ["letters", *["my:Letters"] * 2, "moved:Letters"]
    assert named[1][1] == [*line, "--resume"]
    with pytest.raises(ConfigError, match="--method: name one"):
        train(line)


def test_what_the_episodes_share_is_closed_when_the_run_fails(
    run: Callable[..., int], method: type[Letters], tmp_path: Path
) -> None:
    def fail(rollout: Rollout[str]) -> None:
        raise RunError("no money left")

    method.hook = staticmethod(fail)  # type: ignore[assignment]
    with pytest.raises(RunError, match="no money left"):
        run()
    assert (method.opened, method.closed) == (1, 1)
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_folder_that_is_taken_is_refused_and_nothing_stays_open(
    run: Callable[..., int], method: type[Letters], tmp_path: Path
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ConfigError, match="--run-dir"):
        run(folder="taken")
    assert method.opened == method.closed


def test_a_dry_run_prints_the_options_and_makes_no_job(
    run: Callable[..., int], method: type[Letters], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--dry-run", "--letters", "AZ") == 0
    assert json.loads(capsys.readouterr().out)["letters"]["letters"] == "AZ"
    assert method.opened == 0


def test_a_recorded_episode_is_played_again_and_what_differs_is_told(
    run: Callable[..., int],
    method: type[Letters],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run("--num-rollout", "1") == 0
    start = json.loads((tmp_path / "run" / "start.json").read_text())
    assert start["method"].endswith(":Letters") and start["file"] is None
    assert start["changed"]["num_rollout"] == 20 and "threads" not in start["changed"]
    assert start["changed"]["letters.objective"] is None and "run_dir" not in start["changed"]
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    again = ["--run-dir", str(tmp_path / "run"), "--replay"]
    kinds = [json.loads(line)["kind"] for line in lines]
    for number in (1, 1 + kinds.index("train")):
        capsys.readouterr()
        assert train_method(method, [*again, str(number)]) == 0
        assert capsys.readouterr().out.count("as recorded") == 2
    monkeypatch.setattr(method, "task", lambda self, row: f"{row.prompt}!")
    assert train_method(method, [*again, "1"]) == 4
    out = capsys.readouterr().out
    assert "lost:engine (no turn was recorded after this prompt of" in out
    assert "recorded stopped:turns" in out
    with pytest.raises(ConfigError, match=r"episodes\.jsonl:999: there is no such line"):
        train_method(method, [*again, "999"])
    assert (tmp_path / "run" / "episodes.jsonl").read_text().splitlines() == lines
    assert method.opened == method.closed
