"""Whole evaluations of scripted turns, of a tiny model and of a method with its loop."""

import json
from pathlib import Path
from typing import Any

import pytest
from turnwise.engine.scripted import Reply, ScriptedEngine, fail, reply

from apps.evaluators.aime.fakes import (
    byte_tokenizer,
    evaluate,
    means,
    rows,
    summary,
    write_policy,
)

Json = dict[str, Any]


def words(text: str, finish: Any = None) -> Reply:
    ids = byte_tokenizer().encode(text)
    return reply([*ids, 2] if finish is None else ids, finish=finish)


@pytest.mark.parametrize(
    ("answer", "ending", "score"),
    [
        (words("\\boxed{2}"), "finished", 1.0),
        (words("\\boxed{3}"), "finished", 0.0),
        (words(""), "finished", 0.0),
        (words("\\boxed{2} and on", "length"), "stopped", 1.0),
        (words("\\boxed{2", "length"), "stopped", 0.0),
        (words("\\boxed{2}", "abort"), "cancelled", None),
        (fail("gone"), "lost", None),
    ],
)
def test_a_plain_model_is_asked_once_with_ids(
    engine: ScriptedEngine, tmp_path: Path, answer: Reply, ending: str, score: float | None
) -> None:
    data = tmp_path / "a.jsonl"
    data.write_text('{"prompt": "1 + 1?", "label": "2"}\n')
    engine._function = lambda prompt: answer
    folder = tmp_path / "run"
    code = evaluate(folder, "--data", str(data), "--n-samples-per-eval-prompt", "1", "--seed", "3")
    assert code == (4 if score is None else 0)
    (call,) = engine.calls
    prompt = byte_tokenizer().decode(call.prompt_ids)
    assert "1 + 1?" in prompt and "\\boxed{}" in prompt
    assert (call.params.temperature, call.params.top_p) == (0.7, 0.95)
    (row,) = rows(folder)
    assert (row["kind"], row["score"]) == (ending, score)
    assert "<|im_end|>" not in row["output"]
    if ending != "lost":
        assert row["metrics"]["prompt_tokens"] == len(call.prompt_ids)
        assert row["metrics"]["sampled_tokens"] == len(answer.ids)
        assert "method_score" not in row["metrics"]
    assert engine.released == [call.session_id]


def test_attempts_differ_in_their_seeds_and_repeat_with_the_evaluations(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    for folder in ("one", "two"):
        assert evaluate(tmp_path / folder, "--n-samples-per-eval-prompt", "2") == 0
    seeds = [call.params.seed or 0 for call in engine.calls]
    assert len(set(seeds)) == 24 and sorted(seeds[:24]) == sorted(seeds[24:])


def test_a_question_that_does_not_fit_is_wrong_without_asking(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    data = tmp_path / "a.jsonl"
    long, short = ({"prompt": "1 + 1? " * count, "label": "2"} for count in (100, 1))
    data.write_text(f"{json.dumps(long)}\n{json.dumps(short)}\n")
    folder = tmp_path / "run"
    assert evaluate(folder, "--data", str(data), "--n-samples-per-eval-prompt", "1") == 0
    assert len(engine.calls) == 1
    limits = {row["task_id"]: row["limit"] for row in rows(folder)}
    assert sorted(limits.values(), key=str) == [None, "context"]


def test_several_data_sets_are_told_apart(engine: ScriptedEngine, tmp_path: Path) -> None:
    data, folder = tmp_path / "two.jsonl", tmp_path / "run"
    data.write_text('{"prompt": "1 + 1?", "label": "2"}\n{"prompt": "1 + 2?", "label": "3"}\n')
    engine._function = lambda prompt: words("\\boxed{2}")
    assert evaluate(folder, "--data", "sample", str(data)) == 0
    parts = {name: found[0]["estimate"] for name, found in summary(folder)["parts"].items()}
    assert {name: found["tasks"] for name, found in parts.items()} == {"sample": 12, "two": 2}
    assert parts["two"]["mean"] == 0.5
    assert means(folder)["avg@4"] == means(folder)["maj@4"] == pytest.approx(1 / 14)
    assert summary(folder)["benchmark"] == f"sample + {data}"
    (answers,) = summary(folder)["tables"]
    assert ["two/2", "3", "2 ×4"] in answers["rows"]
    page = (folder / "report.html").read_text()
    assert "<h3>two</h3>" in page and "2 ×4" in page
    other = ["--data", f"old={data}", "--n-samples-per-eval-prompt", "1"]
    assert evaluate(tmp_path / "old", *other) == 0
    assert evaluate(tmp_path / "new", "--data", str(data), "--compare-with", f"{tmp_path}/old") == 0
    assert "paired over 2 tasks" in summary(tmp_path / "new")["compared"]


def test_the_built_in_sample_is_said_to_be_none_of_aime(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(tmp_path / "run", "--n-samples-per-eval-prompt", "1") == 0
    out = capsys.readouterr().out
    assert "its score says nothing about AIME" in out and "a claim on AIME needs avg@32" in out
    assert "graded by: no answer 12" in out


def test_a_model_in_a_folder_is_evaluated_by_the_embedded_engine(tmp_path: Path) -> None:
    policy, folder = write_policy(tmp_path / "policy"), tmp_path / "run"
    argv = ["--max-response-len", "4", "--n-samples-per-eval-prompt", "1", "--threads", "1"]
    assert evaluate(folder, *argv, policy=["--hf-checkpoint", str(policy)]) == 0
    assert means(folder)["avg@1"] == 0.0
    assert summary(folder)["totals"]["sampled_tokens"] <= 48
    assert len(rows(folder, "episodes.jsonl")) == 12
    assert 'id="viewer"' in (folder / "report.html").read_text()


def test_agentflow_is_played_by_name_and_an_unreadable_planner_is_wrong(tmp_path: Path) -> None:
    policy, config = write_policy(tmp_path / "policy"), tmp_path / "agentflow.toml"
    data = tmp_path / "a.jsonl"
    data.write_text('{"prompt": "1 + 1?", "label": {"ground_truth": "2"}}\n')
    config.write_text('helpers = "rules"\nprompt = "compact"\ntools = ["base_generator"]\n')
    fixed = ["--method", "agentflow", "--data", str(data), "--max-response-len", "4"]
    fixed += ["--n-samples-per-eval-prompt", "1", "--threads", "1"]
    plain = ["--helpers", "rules", "--agentflow.prompt", "compact", "--tools", "base_generator"]
    for name, more in (("file", ["--method-config", str(config)]), ("line", plain)):
        folder = tmp_path / name
        at = ["--hf-checkpoint", str(policy)]
        assert evaluate(folder, *fixed, *more, policy=at) == 0
        (row,) = rows(folder)
        assert (row["kind"], row["limit"], row["by"]) == ("stopped", "format", "empty")
        assert row["score"] == row["metrics"]["method_score"] == 0
        assert "Method agentflow" in summary(folder)["claim"][0]


def test_a_misspelt_option_of_agentflow_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "agentflow.toml"
    config.write_text("max-stepps = 3\n")
    method = ["--method", "agentflow", "--method-config", str(config)]
    assert evaluate(tmp_path / "run", *method) == 2
    assert "unknown key 'max-stepps'; did you mean 'max-steps'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["--data"], "--data: "),
        (["--method", "agents"], "method agents: no apps.trainers.agents.method here"),
        (["--n-samples-per-eval-prompt", "0"], "--n-samples-per-eval-prompt: Input should be"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(
    tmp_path: Path, more: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(tmp_path / "run", *more) == 2
    told = capsys.readouterr().err
    assert error in told and len(told.splitlines()) == 1
    assert not (tmp_path / "run").exists()
