"""The command: what it asks, what it says, and how it ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run.pages import run_folder
from turnwise.command import run_command
from turnwise.inflight import playing, waiting
from turnwise.run import watching
from turnwise.run.control import ask, make_request, read_history
from turnwise.run.status import NAME, read_status
from turnwise.run.watching import StatusWriter
from turnwise.runs import asking
from turnwise.runs.command import runs
from turnwise.runs.told import headline

from runs.answering import answering


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return run_folder(tmp_path, ended=False).path


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "EVERY_S", 0.05)


def call(*words: object) -> int:
    return run_command(runs, [str(word) for word in words])


@pytest.mark.parametrize("command", ["pause", "resume", "stop", "eval", "save"])
def test_each_command_reaches_the_run_and_says_its_answer(
    run_dir: Path, command: str, capsys: Any
) -> None:
    with answering(run_dir, **{command: ("noted", "after this step")}) as run:
        assert call(command, run_dir) == 0
    (request,) = run.taken
    assert (request.command, request.arguments) == (command, {}) and " on " in request.by
    assert capsys.readouterr().out == f"{command}: noted: after this step\n"


def test_options_and_tasks_are_named(run_dir: Path, capsys: Any) -> None:
    with answering(run_dir) as run:
        assert call("set", run_dir, "lr=1e-5", "rollout_temperature=0.8") == 0
        assert call("drop", run_dir, "retail/train/12") == 0
    assert [request.arguments for request in run.taken] == [
        {"lr": "1e-5", "rollout_temperature": "0.8"},
        {"retail/train/12": ""},
    ]
    assert "set lr 1e-5 rollout_temperature 0.8: done" in capsys.readouterr().out


def test_what_can_not_be_set_is_refused_with_the_keys_that_can(run_dir: Path, capsys: Any) -> None:
    with answering(run_dir) as run:
        assert call("set", run_dir, "seed=3") == 2
        assert not run.taken
    said = capsys.readouterr().err
    assert "seed: can't be changed" in said and "what was drawn was drawn with it" in said
    assert "set lr, rollout-temperature, concurrency, ROLE.spend-cap-usd" in said


def test_an_option_that_there_is_not_is_told_from_one_that_is_read_once(
    run_dir: Path, capsys: Any
) -> None:
    (run_dir / "config.json").write_text('{"adam_beta1": 0.9, "tau": {"user": {"model": "m"}}}')
    for key in ("adam-beta1", "adam_beta1", "user.model", "tau.user.model"):
        assert call("set", run_dir, f"{key}=1") == 2
        assert f"{key}: can't be changed" in capsys.readouterr().err
    assert call("set", run_dir, "lrr=1e-4") == 2
    assert "set: unknown option 'lrr'; did you mean 'lr'?" in capsys.readouterr().err


def test_a_refusal_of_the_run_is_exit_code_2(run_dir: Path, capsys: Any) -> None:
    with answering(run_dir, set=("refused", "lr: expected a number above 0")):
        assert call("set", run_dir, "lr=0") == 2
    assert "set is refused: lr: expected a number above 0" in capsys.readouterr().err
    with answering(run_dir, drop=("refused", "drop: 'a' is no training task")):
        assert call("drop", run_dir, "a") == 2
    assert "drop is refused: 'a' is no training task" in capsys.readouterr().err


def test_a_run_on_a_cluster_says_why_it_can_not(run_dir: Path, capsys: Any) -> None:
    (run_dir / "launch.json").write_text("{}")
    with answering(run_dir) as run:
        for words, why in (
            (["eval", run_dir], "slime's driver evaluates at --eval-interval alone"),
            (["save", run_dir], "slime's driver saves at --save-interval alone"),
            (["set", run_dir, "lr=1"], "Megatron's scheduler"),
            (["set", run_dir, "rollout-temperature=1"], "the trainer's ranks divide"),
        ):
            assert call(*words) == 2
            assert why in capsys.readouterr().err
        assert not run.taken


def test_a_run_that_has_ended_is_asked_for_nothing(run_dir: Path, capsys: Any) -> None:
    assert call("pause", run_dir) == 2
    assert "it writes no status.json" in capsys.readouterr().err
    with answering(run_dir):
        pass
    assert call("pause", run_dir) == 2
    assert "has ended or does not write" in capsys.readouterr().err


def test_an_evaluation_shows_its_status_and_takes_no_request(run_dir: Path, capsys: Any) -> None:
    with StatusWriter(run_dir, backend="evaluation") as writer:
        writer.stage("playing 12 trials")
        writer.tick()
        assert call("status", run_dir) == 0
        assert "playing 12 trials" in capsys.readouterr().out
        assert call("pause", run_dir) == 2
    assert "an evaluation takes no requests" in capsys.readouterr().err


def test_a_setting_may_wait_for_a_run_that_goes_on(
    run_dir: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", 0.0)
    monkeypatch.setattr(asking.wait_for_answer, "__defaults__", (0.0,))
    assert call("set", run_dir, "lr=1e-5") == 3
    assert "no answer after 0 s; the request stays" in capsys.readouterr().err
    with answering(run_dir) as run:
        assert [request.arguments for request in run.taken] == [{"lr": "1e-5"}]


@pytest.mark.parametrize("words", [["set", "lr"], ["set", "=3"], ["set", "lr="]])
def test_a_change_without_a_value_is_refused(run_dir: Path, words: list[str], capsys: Any) -> None:
    assert call(words[0], run_dir, *words[1:]) == 2
    assert "expected KEY=VALUE" in capsys.readouterr().err


def test_the_status_says_who_waits_for_what(run_dir: Path, capsys: Any) -> None:
    with playing("4/0/1", "4/0", "retail/12\x1b[2J"), waiting("turn 2"), waiting("user"):
        with answering(run_dir) as run:
            run.writer.stage("step 4")
            run.writer.tick()
            assert call("pause", run_dir) == 0
            run.writer.tick()
            assert call("status", run_dir) == 0
    said = capsys.readouterr().out
    assert "paused on local, process" in said and "after step 3, step 4 for" in said
    assert r"retail/12\x1b[2J" in said and "turn 2 " in said and "> user " in said
    assert "\x1b[2J" not in said, "a terminal would obey the name of a task"
    assert "requests" in said and "pause" in said


def test_the_status_of_a_run_that_broke_off_is_exit_code_4(run_dir: Path, capsys: Any) -> None:
    with answering(run_dir) as run:
        last = run.writer.now()
    (run_dir / NAME).write_bytes(
        msgspec.json.encode(msgspec.structs.replace(last, at=time.time() - 3600))
    )
    assert call("status", run_dir) == 4
    assert "as of 60 min ago" in capsys.readouterr().out


def test_stacks_are_printed(run_dir: Path, capsys: Any) -> None:
    with answering(run_dir):
        assert call("status", run_dir, "--stacks") == 0
    assert "thread MainThread" in capsys.readouterr().out


def test_a_run_that_has_ended_says_when_and_one_that_went_silent_says_that(run_dir: Path) -> None:
    with answering(run_dir):
        pass
    status = read_status(run_dir)
    assert status is not None
    ended = msgspec.structs.replace(status, at=1_000_000.0, settled=24)
    said = headline(ended, 1_000_300.0)
    assert said.startswith("ended at 1970-01-12 13:46:40 UTC, 5 min ago, on local, process ")
    assert said.endswith(": after step 3; 24 episodes ended") and "0.0 s" not in said
    silent = msgspec.structs.replace(ended, state="running")
    assert headline(silent, 1_000_300.0).endswith(
        "as of 5 min ago, and nothing since: it has ended or can't write"
    )


def test_runs_are_listed_with_what_they_do(tmp_path: Path, capsys: Any) -> None:
    run_folder(tmp_path / "one")
    other = run_folder(tmp_path / "two", ended=False)
    with answering(other.path) as run:
        run.writer.stage("step 4")
        run.writer.tick()
        assert call("list", tmp_path) == 0
    said = capsys.readouterr().out
    assert "one/tau-run" in said and "finished" in said and "It learned" in said
    assert "step 4, 0 under way" in said


def test_a_line_that_is_no_request_holds_up_nothing(run_dir: Path) -> None:
    ask(run_dir, make_request("pause"))
    with (run_dir / "control.jsonl").open("ab") as stream:
        stream.write(b"nonsense\n" + b'{"id":"x","at":1,"command":"fly"}\n')
    ask(run_dir, make_request("save"))
    with answering(run_dir) as run:
        assert [request.command for request in run.taken] == ["pause", "save"]
    assert [one.command for one in read_history(run_dir)] == ["pause", "save"]
    status = read_status(run_dir)
    assert status is not None and status.state == "ended"
