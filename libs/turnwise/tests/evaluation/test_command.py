"""Whole evaluations of a method by its own reward, with scripted turns."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import turnwise
from turnwise.command import run_command
from turnwise.conversation import Conversation
from turnwise.engine.scripted import ScriptedEngine, fail
from turnwise.evaluation.benchmark import Benchmark
from turnwise.evaluation.command import evaluate_benchmark, evaluate_method
from turnwise.run.lock import locked

from evaluation.fakes import Echo, Json, Words, echo, means, rows, summary


def test_a_method_is_evaluated_on_tasks_of_its_own(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert echo(folder) == 0
    assert means(folder) == {"avg@2": 1.0, "pass@2": 1.0}
    data = summary(folder)
    assert (data["benchmark"], data["policy"]) == ("echo held-out", "p (echo)")
    assert (data["baselines"], data["services"]) == ({"silence": 0.0}, {"wall": "stone"})
    assert data["claim"] == ["Echoes of held-out."]
    (row,) = rows(folder, "metrics.jsonl")
    assert row["ledger"]["started"] == 6 and row["service_totals"] == {"wall/requests": 1.0}
    assert (Echo.opened, Echo.closed) == (1, 1)
    out = capsys.readouterr().out
    assert "3 tasks x 2 trials; 6 to play. wall stone, folder" in out
    assert "6 started = 6 finished + 0 stopped + 0 lost + 0 cancelled" in out
    assert "silence scores 0.000" in out and "Echoes of held-out" in out
    page = (folder / "report.html").read_text()
    assert "Every rollout accounted for" in page and "silence" in page
    assert "Right by tokens of p (echo), silence" in page
    assert set(row["compared"]["right"]) == set(row["scores"])


def test_any_metadata_reaches_the_method_and_a_label_may_be_any_json_value(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    label, more = {"cities": [["Paris"], None], "n": 2}, {"doc": {"pages": [1, 2]}, "id": "first"}
    data, folder = tmp_path / "a.jsonl", tmp_path / "run"
    data.write_text(json.dumps({"ask": "x", "truth": label, "extra": more}) + "\n")
    keys = ["--input-key", "ask", "--label-key", "truth", "--metadata-key", "extra"]
    assert echo(folder, "--prompt-data", str(data), *keys) == 0
    (row,) = Echo.seen
    assert (row.prompt, row.label, row.metadata) == ("x", label, more)
    (task,) = rows(folder, "tasks.jsonl")
    assert (task["id"], task["label"]) == ("first", label)
    assert summary(folder)["benchmark"] == "a" and summary(folder)["claim"] == []


def test_options_of_the_method_are_given_with_and_without_its_name_and_in_files(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    for number, given in enumerate((["--wish", "a"], ["--echo.wish", "a"], ["--method.wish", "a"])):
        folder = tmp_path / f"{number}"
        assert echo(folder, *given) == 0
        assert means(folder)["avg@2"] == pytest.approx(1 / 3)
    config = tmp_path / "run.toml"
    config.write_text('trials = 1\n[method]\nwish = "a"\n')
    assert echo(tmp_path / "file", "--config", str(config)) == 0
    assert means(tmp_path / "file")["avg@2"] == pytest.approx(1 / 3)
    own = tmp_path / "own.toml"
    own.write_text('wish = "a"\n')
    assert echo(tmp_path / "own", "--method-config", str(own)) == 0
    assert means(tmp_path / "own")["avg@2"] == pytest.approx(1 / 3)


def test_a_lost_trial_is_in_no_mean_but_in_bounds_and_coverage(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert echo(folder, "--lose", "held-out/a#1") == 0
    data = summary(folder)
    first = data["measures"][0]
    assert (first["estimate"]["mean"], first["low"], first["high"]) == (1.0, 5 / 6, 1.0)
    assert (data["coverage"], data["lost_as_failed"]) == (5 / 6, 5 / 6)
    out = capsys.readouterr().out
    assert "[83.3 to 100.0 % with lost trials failed or passed]" in out
    assert "(2 of 3 tasks could tell)" in out and "lost:sandbox 1" in out
    assert "lost = failed" in (folder / "report.html").read_text()


def test_a_lost_trial_is_played_again_on_resume_with_the_options_of_the_beginning(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert echo(folder, "--lose", "held-out/a#1", "--temperature", "0.5") == 0
    again = ["--resume", "--run-dir", str(folder)]
    assert turnwise.evaluate(Echo, [*again, "--lose", "none"]) == 0
    assert Echo.played[6:] == ["held-out/a#1"]
    data = summary(folder)
    assert (data["coverage"], data["replayed"]) == (1.0, 1)
    (row,) = rows(folder, "metrics.jsonl")
    assert (row["ledger"]["started"], row["ledger"]["lost"]) == (7, {"sandbox": 1})
    assert row["service_totals"] == {"wall/requests": 2.0}
    assert turnwise.evaluate(Echo, again) == 0
    assert len(Echo.played) == 7 and Echo.opened == 2


def test_an_interrupted_evaluation_goes_on_without_repeating_a_trial(
    engine: ScriptedEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(Echo, "interrupt", "held-out/b#1")
    assert echo(folder, "--concurrency", "1") == 130
    assert f"--resume --run-dir {folder}" in capsys.readouterr().out
    assert not (folder / "summary.json").exists() and len(rows(folder)) == 4
    monkeypatch.setattr(Echo, "interrupt", "")
    assert echo(folder, "--resume") == 0
    assert len(Echo.played) == len(set(Echo.played)) == 6
    assert means(folder)["avg@2"] == 1.0


def test_settings_and_rows_of_two_evaluations_do_not_mix(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = tmp_path / "run", tmp_path / "a.jsonl"
    data.write_text('{"input": "x"}\n')
    file = ["--prompt-data", str(data)]
    assert echo(folder, *file) == 0
    for more, words in (
        (["--temperature", "0.5"], "--temperature is 0.5, the run in"),
        (["--wish", "a"], "--echo.wish is 'a', the run in"),
        (["--trials", "3"], "--trials is 3"),
    ):
        assert echo(folder, "--resume", *more) == 2
        assert words in capsys.readouterr().err
    data.write_text('{"input": "y"}\n')
    assert echo(folder, "--resume") == 2
    assert "the rows are not those" in capsys.readouterr().err
    assert echo(folder, *file) == 2
    assert "exists and is not empty" in capsys.readouterr().err


def test_a_run_in_which_nothing_was_scored_fails_with_the_last_error_of_each_boundary(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine._function = lambda prompt: fail("the engine is gone")
    assert echo(tmp_path / "run") == 4
    error = capsys.readouterr().err
    assert "none of 6 episodes was scored. lost to engine: the engine is gone" in error
    assert "--resume" in error and (tmp_path / "run" / "report.html").is_file()


def test_first_prompts_beyond_the_context_are_told_and_measure_nothing_where_all_are(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The policy of the fixture has room for 100,000 bytes.
    long, short = ({"input": word, "label": word} for word in ("x" * 100_000, "short"))
    data = tmp_path / "rows.jsonl"
    for some, code, begins in ((long, 4, "Nothing was measured: 2 of 2"), (short, 0, "p (")):
        with data.open("a") as file:
            file.write(json.dumps(some) + "\n")
        folder = tmp_path / f"run{code}"
        assert echo(folder, "--prompt-data", str(data)) == code
        shown, said = capsys.readouterr(), summary(folder)["verdict"]
        tail = "episodes never sampled a token: their first prompt needs 100,0"
        assert said.startswith(begins) and f"2 of {2 if code else 4} {tail}" in said
        assert "more than the context of 100,000" in said and "raise --max-context-len" in said
        assert said in shown.out and said[:-1].partition(": ")[2] in shown.err + shown.out
        assert tail in (folder / "report.html").read_text()
        assert ("nothing was measured" in shown.err) == (code == 4)


def test_everybody_lost_twice_over_ends_the_run_at_once(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine._function = lambda prompt: fail("the engine is gone")
    assert echo(tmp_path / "run", "--trials", "30", "--concurrency", "2") == 4
    error = capsys.readouterr().err
    assert "in a row, none of 16 episodes was scored. lost to engine: the engine is gone" in error
    assert "0 of 90 trials have their score" in error
    assert len(rows(tmp_path / "run")) < 20


def test_a_corrected_command_is_not_refused_for_its_folder(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert echo(folder, "--down") == 3
    assert "wish: nobody answers" in capsys.readouterr().err
    assert echo(folder, "--task-split", "test") == 2
    assert "split test: echo has held-out" in capsys.readouterr().err
    assert not folder.exists() and Echo.closed == 1
    assert echo(folder) == 0


def test_a_folder_at_work_is_refused(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert echo(folder, "--lose", "held-out/a#1") == 0
    with locked(folder):
        assert echo(folder, "--resume") == 2
    assert "another process is at work in it" in capsys.readouterr().err


def test_a_benchmark_grades_outputs_and_the_methods_reward_is_a_metric(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    folder, data = tmp_path / "run", tmp_path / "a.jsonl"
    labels = {"a": "a", "b": "z", "unclear": "unclear"}
    data.write_text(
        "".join(json.dumps({"input": q, "label": label}) + "\n" for q, label in labels.items())
    )
    argv = ["--hf-checkpoint", "p", "--prompt-data", str(data), "--label-key", "label"]
    argv += ["--trials", "1", "--wish", "b", "--run-dir", str(folder)]
    assert run_command(lambda given: evaluate_benchmark(Words(), given), argv) == 0
    assert means(folder) == {"avg@1": 0.5, "maj@1": 0.5}
    found = {row["task_id"]: row for row in rows(folder)}
    assert [row["metrics"]["method_score"] for row in found.values()] == [0.0, 1.0, 0.0]
    assert (found["a-1"]["output"], found["a-1"]["vote"], found["a-1"]["by"]) == ("a", "a", "text")
    assert (found["a-3"]["boundary"], found["a-3"]["error"]) == ("judge", "who knows")


def test_a_checkpoint_is_evaluated_on_the_method_s_own_tasks_as_training_evaluates_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = tmp_path / "laptop.toml"
    preset.write_text('lr = 1e-3\nrollout-max-response-len = 9\n[echo]\nwish = "b"\n')
    monkeypatch.setattr(Echo, "preset", preset)

    def resolved(*argv: str) -> Json:
        assert evaluate_method(Echo, ["--dry-run", *argv]) == 0
        found: Json = json.loads(capsys.readouterr().out)
        return found

    found = resolved("--hf-checkpoint", "p")
    limits = (found["max_response_len"], found["max_context_len"], found["trials"])
    assert limits == (9, 1024, 4) and found["echo"]["wish"] == "b"
    found = resolved("--hf-checkpoint", "p", "--wish", "c", "--max-response-len", "7")
    assert (found["max_response_len"], found["echo"]["wish"]) == (7, "c")
    data = tmp_path / "a.jsonl"
    for other in (
        ["--hf-checkpoint", "p", "--prompt-data", str(data)],
        ["--hf-checkpoint", "p", "--method-config", str(tmp_path / "own.toml")],
        ["--base-url", "http://b/v1", "--model", "m"],
    ):
        (tmp_path / "own.toml").write_text("")
        found = resolved(*other)
        assert (found["max_response_len"], found["echo"]["wish"]) == (512, "")


class Loud(Echo):
    """Samples the policy its own way."""

    name = "loud"

    async def run(self, rollout: Any, policy: Any) -> Any:
        async with Conversation(policy, rollout) as talk:
            params = policy.sampling.__class__(temperature=0.0, max_new_tokens=4)
            await policy.engine.generate(
                talk.policy.profile.tokenizer.encode("x"),  # type: ignore[union-attr]
                params,
                session_id=rollout.rollout_id,
            )
        return await super().run(rollout, policy)


def test_a_method_that_samples_the_policy_otherwise_than_asked_is_refused(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--hf-checkpoint", "p", "--run-dir", str(tmp_path / "run")]
    assert run_command(lambda given: evaluate_method(Loud, given), argv) == 2
    error = capsys.readouterr().err
    assert "the policy was sampled with temperature 0" in error
    assert "asked for were 1, 1 and at most 512" in error


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "name one policy"),
        (["--hf-checkpoint", "a", "--base-url", "http://b/v1"], "name one policy"),
        (["--base-url", "http://b/v1"], "--base-url needs --model"),
        (["--base-url", "b", "--model", "m"], "must be a URL"),
        (["--sglang-url", "http://b"], "name one policy"),
        (["--base-url", "http://b/v1", "--model", "m", "--max-context-len", "9"], "no endpoint"),
        (["--hf-checkpoint", "a", "--resume"], "resume needs run-dir"),
        (["--hf-checkpoint", "a", "--temprature", "0"], "did you mean --temperature?"),
        (["--hf-checkpoint", "a", "--top-p", "0"], "--top-p: Input should be greater than 0"),
        (["--hf-checkpoint", "a", "--trials", "99999999"], "--trials: Input should be less"),
        (["--hf-checkpoint", "a", "--device", "gpu"], "--device"),
        (["--hf-checkpoint", "a", "--device", "cuda:99"], "cuda:99: this torch finds no GPU"),
        (["--hf-checkpoint", "absent"], "--hf-checkpoint absent: no such folder"),
        (["--hf-checkpoint", "shipped"], "echo ships no policy"),
        (["--hf-checkpoint", "a", "--prompt-data", "absent.jsonl"], "absent.jsonl: No such file"),
        (["--hf-checkpoint", "a", "--compare-with", "absent"], "absent: no such folder"),
        (
            ["--hf-checkpoint", "a", "--method-config", "no.toml"],
            "method-config no.toml: No such",
        ),
        (["--hf-checkpoint", "a", "--api-key-env", "sk-a-key"], "must be the name of a variable"),
        (["--compare", "a", "b", "--rescore", "c"], "two commands"),
        (["--compare", "a", "b", "--hf-checkpoint", "c"], "ask no model"),
        (["--rescore", "a"], "the score here is the method's own reward"),
        (["--resume", "--run-dir", "absent"], "absent: no such folder"),
        (["--resume", "--run-dir", "trained"], "trained: not the folder of an evaluation"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(
    argv: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trained").mkdir()
    # Of a training run, whose options an evaluation reads otherwise.
    (tmp_path / "trained" / "config.json").write_text('{"label_key": null, "top_p": "x"}')
    assert run_command(lambda given: evaluate_method(Echo, given), argv) == 2
    told = capsys.readouterr().err
    assert words in told and "sk-a-key" not in told and len(told.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_no_method_and_no_such_method_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, words in (
        (["--hf-checkpoint", "a"], "--method: name one of apps/trainers"),
        (["--method", "no.such:Thing", "--hf-checkpoint", "a"], "method no.such:Thing: No module"),
    ):
        assert run_command(lambda given: evaluate_benchmark(Benchmark(), given), argv) == 2
        assert words in capsys.readouterr().err


def test_a_dry_run_and_help_read_no_weights_and_import_no_torch(tmp_path: Path) -> None:
    for more in (["--help"], ["--dry-run", "--hf-checkpoint", "absent"]):
        code = (
            "import sys; from turnwise.evaluation.command import main\n"
            "try: main()\n"
            "finally: assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
        )
        found = subprocess.run(
            [sys.executable, "-c", code, "--method", "evaluation.fakes:Echo", *more],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert found.returncode == 0, found.stderr
        assert "trials" in found.stdout and "wish" in found.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", '{"echo": 5}', "config.json: echo: expected an object, found 5"),
        (
            "config.json",
            '{"method": "echo", "concurrency": [], "echo": {}}',
            "config.json: concurrency: ",
        ),
        ("about.json", '{"title": 1}', "about.json: "),
        ("tasks.jsonl", '{"id": 5}\n', "tasks.jsonl:1: not a task"),
        ("trials.jsonl", "{}\n", "trials.jsonl:1: not a trial"),
        ("services.jsonl", '{"a": "b"}\n', "services.jsonl: "),
    ],
)
def test_a_file_of_another_shape_is_named(
    engine: ScriptedEngine, tmp_path: Path, name: str, content: str, words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = tmp_path / "run"
    assert echo(folder) == 0
    (folder / name).write_text(content)
    assert echo(folder, "--resume") == 2
    assert words in capsys.readouterr().err
