"""Whole evaluations of a knowing method, of scripted turns and of a tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest
from apps.evaluators.aime.run import evaluate_here
from turnwise.command import run_command
from turnwise.engine.scripted import Reply, ScriptedEngine, fail, reply

from apps.evaluators.aime import fakes, playing
from apps.evaluators.aime.fakes import (
    KnowingMethod,
    byte_tokenizer,
    evaluate,
    knowing,
    results,
    rows,
    write_policy,
)

Json = dict[str, Any]


def test_a_method_is_found_by_import_path_and_scored_by_the_evaluators_own_grader(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert knowing(folder) == 0
    found = results(folder)["sets"]["sample"]
    # Each of the 12 problems is right once in 2 attempts, whatever the method's own reward says.
    assert found["avg"]["estimate"] == {"mean": 0.5, "stderr": 0.0, "tasks": 12, "trials": 24}
    assert found["passes"]["2"]["estimate"]["mean"] == 1.0
    assert found["maj"]["estimate"]["mean"] == 0.5
    assert found["by"] == {"box": 24}
    assert all(row["metrics"]["method_score"] == 0.25 for row in rows(folder))
    assert results(folder)["totals"]["tool_calls"] == 48
    assert results(folder)["services"] == [{"coder/requests": 24.0}]
    assert fakes.made[0].closed
    out = capsys.readouterr().out
    assert "avg@2" in out and "50.0 ± 0.0 %" in out and "coverage 100.0%" in out
    assert "24 started = 24 finished + 0 stopped + 0 lost + 0 cancelled" in out
    assert "24 of 24 attempts, 50.0% right" in out
    page = (folder / "report.html").read_text()
    assert "24 started = 24 finished" in page and "coder/requests" in page
    assert "<script src" not in page and "http://" not in page.replace("http://www.w3.org", "")


def test_a_lost_attempt_is_in_no_mean_and_its_bounds_are_shown(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    # Attempt 1 at problem 1 would have been right.
    assert knowing(folder, lose=["sample/1#1"]) == 0
    found = results(folder)["sets"]["sample"]
    assert (found["attempts"], found["scored"]) == (24, 23)
    assert found["avg"]["estimate"]["mean"] == pytest.approx((11 * 0.5 + 0) / 12)
    assert found["avg"]["low"] == pytest.approx((11 * 0.5 + 0) / 12)
    assert found["avg"]["high"] == pytest.approx(0.5)
    assert found["passes"]["2"]["estimate"]["tasks"] == 11
    assert results(folder)["ledger"]["lost"] == {"sandbox": 1}
    out = capsys.readouterr().out
    assert "1 lost" in out and "45.8 to 50.0 %" in out and "lost:sandbox 1" in out
    assert "1 lost (sandbox 1)" in (folder / "report.html").read_text()


def test_lost_attempts_are_made_again_on_resume_and_scored_ones_are_not(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert knowing(folder, lose=["sample/1#1"]) == 0
    assert (
        evaluate(folder, "--resume", "--method", fakes.METHOD, "--n-samples-per-eval-prompt", "2")
        == 2
    )
    config = folder / "config.json"
    saved = json.loads(config.read_text())
    config.write_text(json.dumps(saved | {"method_options": {}}))
    assert (
        evaluate(folder, "--resume", "--method", fakes.METHOD, "--n-samples-per-eval-prompt", "2")
        == 0
    )
    assert fakes.made[-1].played == ["sample/1#1"]
    found = results(folder)
    assert found["sets"]["sample"]["scored"] == 24
    assert (found["ledger"]["started"], found["ledger"]["lost"]) == (25, {"sandbox": 1})
    assert found["services"] == [{"coder/requests": 24.0}, {"coder/requests": 1.0}]


def test_an_interrupted_evaluation_goes_on_without_repeating_an_attempt(
    engine: ScriptedEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(KnowingMethod, "__init__", _interrupted_once(KnowingMethod.__init__))
    assert knowing(folder, "--concurrency", "1") == 130
    assert "--resume --run-dir" in capsys.readouterr().out
    before = [(row["task_id"], row["trial"]) for row in rows(folder)]
    assert len(before) == 6
    assert not (folder / "results.json").exists()
    assert knowing(folder, "--resume") == 0
    after = [(row["task_id"], row["trial"]) for row in rows(folder)]
    assert after[:6] == before and len(set(after)) == len(after) == 24


def _interrupted_once(init: Any) -> Any:
    """The first method that is made meets an interrupt at its seventh attempt."""
    count = [0]

    def patched(self: KnowingMethod, options: Json) -> None:
        interrupt = {} if count[0] else {"interrupt": ["sample/7#0"]}
        count[0] += 1
        init(self, {**options, **interrupt})

    return patched


def test_a_torn_last_line_of_a_killed_evaluation_costs_that_attempt_alone(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert knowing(folder) == 0
    journal = folder / "trials.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    assert knowing(folder, "--resume") == 0
    assert len(fakes.made[-1].played) == 1
    assert results(folder)["sets"]["sample"]["scored"] == 24


def test_a_finished_evaluation_is_summed_up_again_without_a_model(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert knowing(folder) == 0
    first = results(folder)
    assert knowing(folder, "--resume") == 0
    assert len(fakes.made) == 1
    assert results(folder) == first
    assert "nothing is asked" in capsys.readouterr().out


def test_settings_and_problems_of_two_evaluations_do_not_mix(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    data = tmp_path / "a.jsonl"
    data.write_text('{"prompt": "1 + 1?", "label": "2"}\n')
    assert knowing(folder, "--data", str(data)) == 0
    assert knowing(folder, "--data", str(data), "--resume", "--temperature", "0.5") == 2
    assert "--temperature is 0.5" in capsys.readouterr().err
    assert knowing(folder, "--data", str(data), "--resume", extra=1) == 2
    assert "--method-config: holds {'extra': 1}" in capsys.readouterr().err
    data.write_text('{"prompt": "1 + 2?", "label": "3"}\n')
    assert knowing(folder, "--data", str(data), "--resume") == 2
    assert "not the problems" in capsys.readouterr().err
    assert knowing(folder, "--data", str(data)) == 2
    assert "exists and is not empty" in capsys.readouterr().err


def test_a_bug_of_the_method_loses_its_attempt_and_no_other(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert knowing(folder, crash=["sample/2#0"], stop=["sample/4#0"]) == 0
    found = results(folder)
    assert found["ledger"]["lost"] == {"environment": 1}
    assert found["ledger"]["stopped"] == {"turns": 1}
    by_id = {(row["task_id"], row["trial"]): row for row in rows(folder)}
    assert by_id["sample/2", 0]["error"] == "ValueError: a bug of the method"
    # Stopped without a final text: wrong, without asking.
    assert by_id["sample/4", 0]["by"] == "empty"
    assert by_id["sample/4", 0]["score"] == 0.0


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"max_tokens": 5000}])
def test_a_method_that_samples_the_policy_otherwise_than_asked_is_refused(
    engine: ScriptedEngine,
    tmp_path: Path,
    options: Json,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert knowing(tmp_path / "run", **options) == 2
    error = capsys.readouterr().err
    assert "the policy was sampled with temperature" in error
    assert "asked for were 0.7, 0.95 and at most 4096" in error


def test_nothing_scored_is_a_failed_run(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "a.jsonl"
    data.write_text('{"prompt": "1 + 1?", "label": "2"}\n')
    assert knowing(tmp_path / "run", "--data", str(data), lose=["a/1#0", "a/1#1"]) == 4
    error = capsys.readouterr().err
    assert "no attempt was scored, the first error: no process" in error


def test_several_data_sets_run_on_one_event_loop_and_are_told_apart(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    data = tmp_path / "two.jsonl"
    data.write_text('{"prompt": "1 + 1?", "label": "2"}\n{"prompt": "1 + 2?", "label": "3"}\n')
    folder = tmp_path / "run"
    assert knowing(folder, "--data", "sample", str(data), "--n-samples-per-eval-prompt", "1") == 0
    sets = results(folder)["sets"]
    assert {name: found["problems"] for name, found in sets.items()} == {
        "sample": 12, "two": 2, "all": 14,
    }  # fmt: skip
    assert len(fakes.made) == 1
    assert sets["all"]["avg"]["estimate"]["mean"] == 0.5


def test_a_page_of_many_problems_says_what_it_leaves_out(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    data, folder = tmp_path / "many.jsonl", tmp_path / "run"
    rows = ({"prompt": f"{n} + 1?", "label": n + 1} for n in range(205))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert knowing(folder, "--data", str(data), "--n-samples-per-eval-prompt", "1") == 0
    page = (folder / "report.html").read_text()
    assert "5 problems between these are left out" in page
    assert page.count('<th scope="row">many/') == 200


def test_results_never_lie_in_the_source_tree(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = Path(playing.__file__).parent
    before = {path for path in here.rglob("*") if "__pycache__" not in path.parts}
    assert run_command(evaluate_here, ["--hf-checkpoint", "p", "--method", fakes.METHOD]) == 0
    assert {path for path in here.rglob("*") if "__pycache__" not in path.parts} == before
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("eval-aime-") and (folder / "report.html").is_file()


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
        assert row["metrics"]["read_tokens"] == len(call.prompt_ids)
        assert row["metrics"]["written_tokens"] == len(answer.ids)
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
    data.write_text(json.dumps({"prompt": "1 + 1? " * 100, "label": "2"}) + "\n")
    folder = tmp_path / "run"
    assert evaluate(folder, "--data", str(data), "--n-samples-per-eval-prompt", "1") == 0
    assert not engine.calls
    assert rows(folder)[0]["limit"] == "context"


def test_a_model_in_a_folder_is_evaluated_by_the_embedded_engine(tmp_path: Path) -> None:
    policy, folder = write_policy(tmp_path / "policy"), tmp_path / "run"
    argv = ["--max-response-len", "4", "--n-samples-per-eval-prompt", "1", "--threads", "1"]
    assert evaluate(folder, *argv, policy=["--hf-checkpoint", str(policy)]) == 0
    assert results(folder)["sets"]["sample"]["avg"]["estimate"]["mean"] == 0.0
    assert results(folder)["totals"]["written_tokens"] <= 48
    assert len(rows(folder, "episodes.jsonl")) == 12
    assert 'id="viewer"' in (folder / "report.html").read_text()


def test_agentflow_is_played_by_name_and_an_unreadable_planner_is_wrong(tmp_path: Path) -> None:
    policy, folder = write_policy(tmp_path / "policy"), tmp_path / "run"
    data, config = tmp_path / "a.jsonl", tmp_path / "agentflow.toml"
    data.write_text('{"prompt": "1 + 1?", "label": "2"}\n')
    config.write_text('helpers = "rules"\nprompt = "compact"\ntools = ["base_generator"]\n')
    method = ["--method", "agentflow", "--method-config", str(config), "--data", str(data)]
    argv = ["--max-response-len", "4", "--n-samples-per-eval-prompt", "1", "--threads", "1"]
    code = evaluate(folder, *method, *argv, policy=["--hf-checkpoint", str(policy)])
    assert code == 0
    (row,) = rows(folder)
    assert (row["kind"], row["limit"], row["by"], row["score"]) == ("stopped", "format", "empty", 0)
    assert row["metrics"]["written_tokens"] == row["metrics"]["sampled_tokens"] == 16


def test_a_misspelt_option_of_agentflow_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "agentflow.toml"
    config.write_text("max-stepps = 3\n")
    method = ["--method", "agentflow", "--method-config", str(config)]
    assert evaluate(tmp_path / "run", *method) == 2
    assert "unknown key 'max-stepps'; did you mean 'max-steps'?" in capsys.readouterr().err
