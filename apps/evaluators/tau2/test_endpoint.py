"""A model behind an endpoint with a user behind one, and what both cost."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.command import run_command
from turnwise.evaluation.command import evaluate_benchmark

from apps.evaluators.tau2.benchmark import Tau2
from apps.evaluators.tau2.playing import serving

STOP = "###STOP###"


def say(messages: Any) -> str:
    """The user's part, known by its marker: a wish, then enough. The agent's: a refusal."""
    if messages[0]["role"] != "system" or STOP not in messages[0]["content"]:
        return "I can't do that."
    spoken = sum(message["role"] == "assistant" for message in messages)
    return STOP if spoken else "Please make a task."


def evaluate(argv: list[str]) -> int:
    return run_command(partial(evaluate_benchmark, Tau2()), argv)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def test_user_and_policy_are_named_and_their_tokens_and_money_told_by_trial(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with serving(say) as url:
        argv = [
            "--base-url", url, "--model", "m", "--read-price", "10", "--write-price", "20",
            "--user.strategy", "llm", "--user.base-url", url, "--user.model", "u",
            "--user.key-env", "", "--user.read-price", "1000", "--user.write-price", "1000",
            "--env", "tau2-mock", "--trials", "1", "--run-dir", str(folder),
        ]  # fmt: skip
        assert evaluate(argv) == 0
    data = json.loads((folder / "summary.json").read_text())
    assert data["services"]["user"].startswith("llm-") and "(u" in data["services"]["user"]
    assert "a user played by a model" not in " ".join(data["claim"])
    played = rows(folder)
    assert {row["kind"] for row in played} == {"finished"} and len(played) == 9
    asked = sum(row["metrics"]["user_requests"] for row in played)
    assert asked >= 9
    (costs, *_) = data["tables"]
    by_name = {row[0]: row[1:] for row in costs["rows"]}
    usd = sum(row["metrics"]["user_usd"] for row in played) / 9
    assert usd > 0 and by_name["user"][2] == f"{usd:.4f}"
    assert float(by_name["policy"][2]) > 0 and float(by_name["judge"][2]) == 0


def test_a_user_that_fails_loses_its_trials_and_none_is_a_0(tmp_path: Path) -> None:
    def broken(messages: Any) -> str:
        return say(messages) if STOP not in messages[0]["content"] else ""

    with serving(broken) as url:
        argv = [
            "--base-url", url, "--model", "m", "--user.strategy", "llm", "--user.base-url", url,
            "--user.model", "u", "--user.key-env", "", "--user.max-empty-replies", "0",
            "--env", "tau2-mock", "--trials", "1", "--run-dir", str(tmp_path / "run"),
        ]  # fmt: skip
        assert evaluate(argv) == 4
    found = rows(tmp_path / "run")
    assert found and {(row["score"], row["boundary"]) for row in found} == {(None, "user")}
