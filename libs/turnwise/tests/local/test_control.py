"""A run under way does what people ask for between two steps, and writes down what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from turnwise.local.checkpoint import list_checkpoints
from turnwise.local.control import LOOK_S, LocalControl
from turnwise.local.experiment import open_experiment
from turnwise.local.loop import Interrupted, train
from turnwise.local.policy import LoadedPolicy
from turnwise.rollout import Rollout
from turnwise.run.control import Outcome, ask, changes, make_request, read_history
from turnwise.run.folder import RunFolder
from turnwise.run.status import read_status
from turnwise.run.watching import StatusWriter

from local.letters import LetterOptions, letters
from local.test_loop import options, rows


class Asking:
    """Starts runs of which somebody asks something in a step, which is seen at once: no thread
    looks in between.

    Attributes:
        asked: Commands with their arguments, by step.
        controls: Of the runs so far.
    """

    def __init__(self, tmp_path: Path, tokenizer: Any, make_policy: Callable[..., Any]) -> None:
        self.tmp_path, self._tokenizer, self._make_policy = tmp_path, tokenizer, make_policy
        self.asked: dict[int, list[tuple[str, dict[str, str]]]] = {}
        self.controls: list[LocalControl] = []

    async def run(self, name: str = "run", **changes: Any) -> RunFolder:
        torch.set_num_threads(1)
        chosen = options(**changes)
        path = self.tmp_path / name
        folder = (
            RunFolder.open(path)
            if chosen.resume
            else RunFolder.create(path, "letters", chosen.model_dump(mode="json"))
        )
        asked = dict(self.asked)

        def hook(rollout: Rollout[str]) -> None:
            step, _, place = rollout.rollout_id.partition("/")
            # All others have begun by then.
            for command, arguments in asked.pop(int(step), ()) if place == "3/3" else ():
                ask(folder.path, make_request(command, arguments, by="a test"))  # type: ignore[arg-type]
                self.controls[-1].look()

        policy = LoadedPolicy("memory", self._make_policy(), self._tokenizer)
        experiment = await open_experiment(chosen, letters(hook)(LetterOptions()), policy)
        await train(chosen, experiment, policy, folder)
        return folder


@pytest.fixture
def asking(
    tmp_path: Path,
    tokenizer: Any,
    make_policy: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Asking:
    asking = Asking(tmp_path, tokenizer, make_policy)
    enter = LocalControl.__enter__

    def entered(self: LocalControl) -> LocalControl:
        asking.controls.append(self)
        return enter(self)

    monkeypatch.setattr(LocalControl, "__enter__", entered)
    monkeypatch.setattr(StatusWriter, "_run", lambda self: None)
    return asking


def ends(folder: RunFolder) -> list[tuple[str, str, int]]:
    """Command, answer and step of the requests' ends."""
    found = [one for one in read_history(folder.path) if one.answer != "noted"]
    return [(one.command, one.answer, one.step) for one in found]


def said(folder: RunFolder) -> str:
    return "\n".join(one.said for one in read_history(folder.path))


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    found = load_file(list_checkpoints(folder.checkpoints)[-1] / "model.safetensors")
    return dict(found)


async def test_an_evaluation_and_a_checkpoint_are_made_when_asked_for(asking: Asking) -> None:
    asking.asked = {3: [("eval", {}), ("save", {})]}
    folder = await asking.run(save_interval=100)
    assert [row["step"] for row in rows(folder, "eval")] == [0, 3, 4]
    assert [path.name for path in list_checkpoints(folder.checkpoints)] == ["step_3", "step_4"]
    assert ends(folder) == [("eval", "done", 3), ("save", "done", 3)]


async def test_a_run_that_is_asked_to_stop_is_saved_and_goes_on(asking: Asking) -> None:
    asking.asked = {3: [("stop", {})]}
    with pytest.raises(Interrupted, match="after step 3"):
        await asking.run(save_interval=100)
    folder = RunFolder.open(asking.tmp_path / "run")
    assert ends(folder) == [("stop", "done", 3)]
    assert [path.name for path in list_checkpoints(folder.checkpoints)] == ["step_3"]
    await asking.run(run_dir=folder.path, resume=True)
    assert len(rows(folder, "train")) == 4
    status = read_status(folder.path)
    assert status is not None and (status.state, status.step) == ("ended", 4)


async def test_a_learning_rate_that_was_set_holds_from_the_next_step_on(asking: Asking) -> None:
    plain = await asking.run("plain")
    asking.asked = {2: [("set", {"lr": "1e-9"})]}
    changed = await asking.run("changed")
    for row, other in zip(rows(plain, "train")[:2], rows(changed, "train")[:2], strict=True):
        assert (row["loss"], row["grad_norm"]) == (other["loss"], other["grad_norm"])
    after_2 = load_file(changed.checkpoints / "step_2" / "model.safetensors")
    moved = max(float((after_2[n] - w).abs().max()) for n, w in weights(changed).items())
    assert 0 < moved < 1e-6
    assert ends(changed) == [("set", "done", 2)]


async def test_a_run_that_goes_on_makes_a_change_after_the_same_step(asking: Asking) -> None:
    asking.asked = {3: [("set", {"lr": "2e-2", "rollout-temperature": "0.5"})]}
    whole = await asking.run("whole", num_rollout=6, save_interval=100)
    asking.asked = {3: [("set", {"lr": "2e-2", "rollout-temperature": "0.5"})], 5: [("stop", {})]}
    with pytest.raises(Interrupted):
        await asking.run("broken", num_rollout=6, save_interval=2)
    folder = RunFolder.open(asking.tmp_path / "broken")
    for step in (5, 4):
        for file in (folder.checkpoints / f"step_{step}").iterdir():
            file.unlink()
        (folder.checkpoints / f"step_{step}").rmdir()
    asking.asked = {}
    await asking.run("broken", num_rollout=6, save_interval=2, run_dir=folder.path, resume=True)
    assert weights(folder).keys() == weights(whole).keys()
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(folder)[name]), name


async def test_a_paused_run_stands_between_two_steps_until_it_is_resumed(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, str]] = []
    asking.asked = {2: [("pause", {})]}
    path = asking.tmp_path / "run"
    plain_sleep = asyncio.sleep

    async def look_twice(seconds: float, result: Any = None) -> Any:
        if seconds == LOOK_S:
            (control,) = asking.controls
            control.writer.tick()
            status = read_status(path)
            assert status is not None
            seen.append((status.state, status.step, status.stage))
            if len(seen) == 2:
                ask(path, make_request("resume"))
                control.look()
        return await plain_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", look_twice)
    folder = await asking.run()
    assert seen == [("paused", 2, "paused")] * 2
    assert ends(folder) == [("pause", "done", 2), ("resume", "done", 2)]
    assert len(rows(folder, "train")) == 4


async def test_a_dropped_task_is_cancelled_and_played_no_more(asking: Asking) -> None:
    asking.asked = {2: [("drop", {"task-ab": ""})]}
    folder = await asking.run()
    ledgers = [row["ledger"] for row in rows(folder, "train")]
    assert [row["cancelled"] for row in ledgers] == [0, 4, 0, 0]
    assert rows(folder, "train")[1]["groups_dropped"]["too_few_scored"] == 1
    assert ends(folder) == [("drop", "done", 2)]
    later = {row["task_id"] for row in folder.episode_rows() if row["step"] > 2}
    assert "task-ab" not in later and later


@pytest.mark.parametrize(
    ("command", "arguments", "why"),
    [
        ("set", {"lr": "-1"}, "lr: expected a number above 0, found '-1'"),
        ("set", {"concurrency": "2.5"}, "expected a whole number"),
        ("set", {"seed": "1"}, "what was drawn was drawn with it"),
        ("set", {"learning-rate": "1"}, "can be asked for, and set lr, rollout-temperature"),
        ("set", {"user.spend-cap-usd": "5"}, "no model that costs anything is a user"),
        ("set", {}, "name KEY=VALUE"),
        ("drop", {"task-ij": ""}, "is evaluated"),
        ("drop", {"nothing": ""}, "none has this id"),
    ],
)
async def test_what_can_not_be_done_is_refused_with_the_reason(
    asking: Asking, command: str, arguments: dict[str, str], why: str
) -> None:
    asking.asked = {1: [(command, arguments)]}
    folder = await asking.run(num_rollout=2, save_interval=100)
    assert [answer for _, answer, _ in ends(folder)] == ["refused"]
    assert why in said(folder)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("set", {"rollout-temperature": "0.5"}), ("drop", {"task-ab": ""})],
)
async def test_rollouts_that_are_sampled_ahead_are_not_contradicted(
    asking: Asking, command: str, arguments: dict[str, str]
) -> None:
    asking.asked = {1: [(command, arguments), ("set", {"lr": "1e-6"})]}
    folder = await asking.run(
        num_rollout=3, save_interval=100, rollout_lag=1, use_tis=True, lr=1e-5
    )
    assert [answer for _, answer, _ in ends(folder)] == ["refused", "done"]
    assert "with --rollout-lag 1" in said(folder)


async def test_what_was_asked_of_an_ended_process_is_not_done_later(asking: Asking) -> None:
    asking.asked = {3: [("stop", {})]}
    with pytest.raises(Interrupted):
        await asking.run(save_interval=100)
    path = asking.tmp_path / "run"
    ask(path, make_request("stop"))
    ask(path, make_request("set", {"lr": "1e-5"}))
    asking.asked = {}
    folder = await asking.run(run_dir=path, resume=True)
    assert ends(folder)[1:] == [("stop", "refused", 3), ("set", "done", 3)]
    assert len(rows(folder, "train")) == 4


async def test_the_stacks_of_all_tasks_are_written_when_asked_for(asking: Asking) -> None:
    asking.asked = {1: [("stacks", {})]}
    folder = await asking.run(num_rollout=2, save_interval=100)
    text = (folder.path / "stacks.txt").read_text()
    assert "in train" in text and "thread MainThread" in text


def test_a_later_setting_after_an_earlier_step_goes_before_the_old_one() -> None:
    def outcome(step: int, key: str, value: str) -> Outcome:
        return Outcome(
            request=f"{step}{value}",
            at=0.0,
            step=step,
            command="set",
            arguments={key: value},
            answer="done",
        )

    old, other, new = outcome(7, "lr", "1"), outcome(7, "concurrency", "3"), outcome(5, "lr", "2")
    first = outcome(3, "lr", "0.5")
    assert changes([first, old, other, new]) == [first, other, new]
