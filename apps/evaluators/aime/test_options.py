"""What the command refuses: one line each, and the exit code."""

from pathlib import Path

import pytest
from apps.evaluators.aime.run import evaluate_here
from turnwise.engine.scripted import ScriptedEngine

from apps.evaluators.aime import fakes
from apps.evaluators.aime.fakes import evaluate, knowing

KEY = "sk-never-to-be-written-4711"


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--data", "nowhere.jsonl"], "--data nowhere.jsonl: No such file"),
        (["--method", "agents"], "'agents' is neither one of"),
        (["--method", "no.such:thing"], "method: no.such:thing: No module"),
        (["--method", f"{fakes.__name__}:no_method"], "gives object, not a turnwise Method"),
        (["--method", fakes.METHOD, "--method-config", "nowhere.toml"], "nowhere.toml: No such"),
        (["--hf-checkpoint", "nowhere"], "--hf-checkpoint nowhere"),
        (["--device", "cuda:99"], "--device cuda:99: this torch finds no GPU"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(
    tmp_path: Path,
    more: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert evaluate(tmp_path / "run", *more) == 2
    told = capsys.readouterr().err
    assert error in told and len(told.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_methods_own_options_are_checked_before_anything_is_written(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert knowing(tmp_path / "run", needs="coder") == 2
    assert "method: coder is missing" in capsys.readouterr().err
    config = tmp_path / "bad.toml"
    config.write_text("coder = ")
    more = ["--method", fakes.METHOD, "--method-config", str(config)]
    assert evaluate(tmp_path / "run", *more) == 2
    assert "bad.toml: not valid TOML" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "name one policy"),
        (["--hf-checkpoint", "a", "--base-url", "http://b/v1"], "name one policy"),
        (["--base-url", "http://b/v1"], "--base-url needs --model"),
        (["--base-url", "b", "--model", "m"], "must be a URL"),
        (["--sglang-url", "http://b"], "name one policy"),
        (["--base-url", "http://b/v1", "--model", "m", "--method", "agentflow"], "token ids"),
        (["--base-url", "http://b/v1", "--model", "m", "--max-context-len", "9"], "no endpoint"),
        (["--hf-checkpoint", "a", "--method-config", "b.toml"], "plain has no options"),
        (["--hf-checkpoint", "a", "--resume"], "resume needs run-dir"),
        (["--hf-checkpoint", "a", "--temprature", "0"], "--temperature"),
        (["--compare", "a", "b", "--rescore", "c"], "two commands"),
        (["--compare", "a", "b", "--hf-checkpoint", "c"], "ask no model"),
        (["--hf-checkpoint", "a", "--top-p", "0"], "greater than 0"),
        (["--hf-checkpoint", "a", "--device", "gpu"], "device"),
        (["--hf-checkpoint", "a", "--api-key-env", KEY], "must be the name of a variable"),
    ],
)
def test_options_that_make_no_sense_exit_with_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        evaluate_here(argv)
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert words in " ".join(told.replace("│", " ").split()) and KEY not in told
