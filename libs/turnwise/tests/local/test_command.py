"""The command of a method that is not tau: no tools, two conversations an episode."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokendelta
from pydantic import Field
from turnwise.command import RunError
from turnwise.config import ConfigError
from turnwise.episode import Ending, Episode
from turnwise.local.command import LocalTrainer
from turnwise.local.options import TrainOptions
from turnwise.local.policy import LoadedPolicy
from turnwise.local.trainer import Job
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed

FAST = [
    "--num-rollout", "2", "--rollout-batch-size", "2", "--n-samples-per-prompt", "4",
    "--n-samples-per-eval-prompt", "1", "--rollout-max-response-len", "5", "--threads", "1",
    "--rollout-max-context-len", "120", "--lr", "1e-3", "--objective", "turn-mean",
]  # fmt: skip


class LetterOptions(TrainOptions):
    """Options of the method."""

    letters: str = Field(default="az", min_length=2, max_length=2)
    """Sampled bytes between these two are worth a point."""


async def play(rollout: Rollout[str], policy: Policy, letters: str) -> Episode:
    """Two conversations of one turn each; the second begins with what the first one said."""
    segments: list[tokendelta.Sample] = []
    said = rollout.task
    good = sampled = 0
    for turn in range(2):
        session = tokendelta.Session(policy.profile, max_tokens=policy.max_context_tokens)
        prompt = session.start([{"role": "user", "content": f"{turn}: {said}"}])
        assert not isinstance(prompt, tokendelta.Overflow)
        params = replace(policy.sampling, seed=derive_seed(rollout.seed, turn))
        completion = await policy.engine.generate(prompt, params, session_id=rollout.rollout_id)
        session.append_sampled(completion.ids, completion.logprobs, completion.finish)
        said = policy.text(completion.ids).encode("ascii", "replace").decode()
        good += sum(letters[0] <= letter <= letters[1] for letter in said)
        sampled += len(completion.ids)
        segments += session.samples().samples
    await policy.engine.release(rollout.rollout_id)
    return Episode(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        task_id=rollout.task_id,
        segments=tuple(segments),
        ending=Ending.finished(),
        score=good / max(sampled, 1),
        transcript=(),
        metrics={"conversations": 2.0},
    )


class Desk:
    """Makes jobs and knows which of them were closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.fail: Exception | None = None

    async def make_job(self, options: LetterOptions, policy: LoadedPolicy) -> Job[str]:
        self.opened += 1

        async def run(rollout: Rollout[str], sampler: Policy) -> Episode:
            if self.fail is not None:
                raise self.fail
            return await play(rollout, sampler, options.letters)

        async def close() -> None:
            self.closed += 1

        return Job(
            method="letters",
            train_tasks={"ab": "ab", "cd": "cd"},
            eval_tasks={"ef": "ef", "gh": "gh"},
            run_episode=run,
            profile=tokendelta.Profile.from_tokenizer(policy.tokenizer),
            claim=("Letters only.",),
            services={"sandbox": "none", "coder": "rules"},
            baselines={"always a": 1.0, "never a": 0.25},
            about="letter tasks",
            close=close,
        )


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def run(desk: Desk, policy_folder: Path, tmp_path: Path) -> Callable[..., int]:
    trainer = LocalTrainer(
        prog="letters:train",
        description="Trains letters.",
        method="letters",
        options=LetterOptions,
        make_job=desk.make_job,
        shipped=policy_folder,
        require_tools=False,
        may_change=frozenset({"letters"}),
    )

    def start(*words: str, folder: str = "run") -> int:
        return trainer.run([*FAST, "--run-dir", str(tmp_path / folder), *words])

    return start


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_a_method_without_tools_or_users_trains_from_command_to_report(
    run: Callable[..., int], desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Training the shipped policy on 2 letter tasks: 2 steps of 2 prompts x 4" in out
    assert "Sandbox none, coder rules, seed 1234" in out
    assert "Always a scores 100.0 % here. Never a scores 25.0 % here." in out
    assert "Sandbox: none; coder: rules - Letters only." in out
    assert "(always a 1.000, never a 0.250)" in out
    assert (desk.opened, desk.closed) == (1, 1)
    train = [row for row in rows(tmp_path / "run") if row["kind"] == "train"]
    assert [row["step"] for row in train] == [1, 2]
    for row in train:
        assert row["metrics"]["conversations"] == {"mean": 2.0, "episodes": 8}
        assert row["services"] == {"sandbox": "none", "coder": "rules"}
        # Every turn of every kept rollout is trained on, and the trainer computes what was sampled.
        assert row["groups_kept"] == 2 and 8 * 2 < row["trained_tokens"] <= row["sampled_tokens"]
        assert row["max_logprob_diff"] < 1e-4
    page = (tmp_path / "run" / "report.html").read_text()
    assert "always a" in page and "never a" in page and "Conversations per episode" in page


def test_a_resumed_run_keeps_the_options_that_it_was_started_with(
    run: Callable[..., int], desk: Desk, tmp_path: Path
) -> None:
    assert run("--seed", "7") == 0
    with pytest.raises(ConfigError, match="--lr is 0.5, the run in .* started with 0.001"):
        run("--resume", "--lr", "0.5")
    assert run("--resume", "--num-rollout", "3", "--letters", "AZ") == 0
    steps = [row["step"] for row in rows(tmp_path / "run") if row["kind"] == "train"]
    assert steps == [1, 2, 3]
    assert desk.opened == desk.closed


def test_what_the_episodes_share_is_closed_when_the_run_fails(
    run: Callable[..., int], desk: Desk, tmp_path: Path
) -> None:
    desk.fail = RunError("no money left")
    with pytest.raises(RunError, match="no money left"):
        run()
    assert (desk.opened, desk.closed) == (1, 1)
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_folder_that_is_taken_is_refused_and_nothing_stays_open(
    run: Callable[..., int], desk: Desk, tmp_path: Path
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ConfigError, match="--run-dir"):
        run(folder="taken")
    assert desk.opened == desk.closed


def test_a_dry_run_prints_the_options_and_makes_no_job(
    run: Callable[..., int], desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--dry-run", "--letters", "AZ") == 0
    assert json.loads(capsys.readouterr().out)["letters"] == "AZ"
    assert desk.opened == 0
