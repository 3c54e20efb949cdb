"""The report of an evaluation, and the command that rebuilds a report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from turnwise.episode import Ending, Limit
from turnwise.report import write_eval_report, write_report
from turnwise.report.__main__ import main
from turnwise.run.folder import RunFolder
from turnwise.run.metrics import as_row
from turnwise.run.summary import EvalSummary, Measure, write_summary
from turnwise.trials import Estimate

from .pages import Page, add_trace, run_folder
from .rows import eval_row

MEANING = "The chance that k trials all pass."


def eval_folder(path: Path, *, ended: bool = True) -> RunFolder:
    folder = RunFolder.create(path / "eval-run", "tau-eval", {"trials": 2})
    folder.append_metrics(as_row(eval_row(scores={"a": [1.0, 1.0], "b": [0.0, None]})))
    add_trace(folder, step=0, kind="eval", score=0.0, ending=Ending.stopped(Limit.TURNS))
    if ended:
        write_summary(
            folder,
            EvalSummary(
                benchmark="tau-bench retail test",
                policy="step_20",
                measures=(
                    Measure(name="pass^1", estimate=Estimate(0.5, 0.5, 2, 3), meaning=MEANING),
                    Measure(
                        name="pass^2", estimate=Estimate(1.0, float("nan"), 1, 2), meaning=MEANING
                    ),
                ),
                compared="Against step_0: +10.0 points.",
                trials=2,
                baselines={"doing nothing": 0.02},
                coverage=0.75,
                services={"user": "offline"},
                claim=("Scores name the user that made them.",),
            ),
        )
    return folder


def test_an_evaluation_has_pass_k_coverage_baseline_and_tasks(tmp_path: Path) -> None:
    page = Page.read(write_report(eval_folder(tmp_path).path))
    text = re.sub(r"\s+", " ", page.text)
    assert "step_20 has pass^1 50.0 ± 50.0 % on tau-bench retail test" in text
    assert text.count(MEANING) == 1 and "Against step_0: +10.0 points." in text
    assert "doing nothing 2.0%" in text and "coverage 75.0%" in text
    assert "pass^1 50.0% 50.0% 2 3" in text and "pass^2 100.0% - 1 2" in text
    assert "a 11 1.00" in text and "b 0lost 0.00" in text
    assert "Scores name the user that made them." in text
    assert "training step" not in text.split("Every rollout")[0]


def test_parts_that_differ_in_a_number_have_a_curve_with_a_band(tmp_path: Path) -> None:
    def charts(*parts: str) -> list[Any]:
        folder = eval_folder(tmp_path / "-".join(parts))
        row = json.loads(folder.summary.read_text("utf-8"))
        measure = {
            "name": "avg@4",
            "estimate": {"mean": 0.5, "stderr": 0.1, "tasks": 4, "trials": 8},
        }
        row["parts"] = {part: [measure] for part in parts}
        folder.summary.write_text(json.dumps(row), encoding="utf-8")
        made = Page.read(write_report(folder.path)).charts
        return [chart for chart in made if chart.get("axis") == "part"]

    [chart] = charts("200 documents", "50 documents")
    assert (chart["x"], chart["y"], chart["errors"]) == ([50, 200], [0.5, 0.5], [0.1, 0.1])
    assert not charts("50 documents") and not charts("50 documents", "2 words")
    assert not charts("retail", "50 documents")


def test_an_evaluation_without_a_summary_has_the_mean_of_its_scores(tmp_path: Path) -> None:
    folder = eval_folder(tmp_path, ended=False)
    text = re.sub(r"\s+", " ", Page.read(write_eval_report(folder.path)).text)
    assert "No result: this evaluation has not ended" in text
    assert "score 50.0% 50.0% 2 3" in text


def test_the_command_prints_the_path_and_returns_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path, steps=1)
    monkeypatch.setattr("sys.argv", ["report", str(folder.path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{folder.report}\n"
    assert folder.report.is_file()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone", "no such folder"),
        ("file", "is a file; name the folder"),
        ("empty", "not a run folder: none of config"),
    ],
)
def test_the_command_refuses_what_is_no_run_folder(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    said: str,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["report", str(tmp_path / name)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / name / "report.html").exists()
