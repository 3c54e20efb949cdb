"""ToolOrchestra's lines of `check`: what would fail on the nodes is said before the run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from turnwise.preflight import Line, run_checks
from turnwise.testing.servers import FakeChat, FakeRetrieval, in_a_thread

from apps.trainers.toolorchestra.checks import make_checks
from apps.trainers.toolorchestra.method import METHOD, ToolOrchestraMethod
from apps.trainers.toolorchestra.options import ToolOrchestraOptions
from apps.trainers.toolorchestra.tests.orchestra import TABLE

NOBODY = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "deadline_s": 0.5, "patience_s": 0.0}
SGLANG = "sglang:\n  - name: policy\n    update_weights: true\n  - name: expert-14b\n"
TABLES = [one.model_dump() for one in TABLE if one.tool == "answer"]


@dataclass
class Flags:
    """slime's flags, as a plan holds them."""

    options: dict[str, list[str]] = field(default_factory=dict)

    def value(self, name: str) -> str | None:
        values = self.options.get(name)
        return values[0] if values else None


def flags(**given: Any) -> Flags:
    return Flags({f"--{name.replace('_', '-')}": [str(one)] for name, one in given.items()})


def lines(only: str, given: Flags | None = None, **options: Any) -> list[Line]:
    """The lines of one check."""
    made: Any = given or Flags()
    method = ToolOrchestraMethod(ToolOrchestraOptions(**options))
    return list(run_checks({only: make_checks(method, made)[only]}))


def data(path: Path, *rows: dict[str, Any]) -> Flags:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return flags(prompt_data=path, input_key="prompt", label_key="label")


def test_every_row_and_who_plays_its_experts_is_told(tmp_path: Path) -> None:
    row = {"prompt": "6 x 7?", "label": "42", "metadata": {"experts": TABLES}}
    models = {"small": NOBODY, "large": NOBODY}
    [line] = lines("data", data(tmp_path / "train.jsonl", row, row), models=models)
    assert line.verdict == "ok" and "2 questions" in line.found
    assert "small in 2, large in 2" in line.found


def test_a_row_with_an_expert_that_the_run_has_not_is_named(tmp_path: Path) -> None:
    row = {"prompt": "6 x 7?", "label": "42", "metadata": {"experts": TABLES}}
    [line] = lines("data", data(tmp_path / "train.jsonl", row), models={"small": NOBODY})
    assert line.verdict == "FAIL" and "train.jsonl:1" in line.found and "'large'" in line.found


def test_a_run_without_data_fails() -> None:
    [line] = lines("data")
    assert line.verdict == "FAIL" and "prompt-data" in line.found


def test_each_expert_and_the_judge_is_asked() -> None:
    server = FakeChat(lambda messages: "ready")
    in_a_thread(server)
    answers = {"base_url": f"{server.url}/v1", "model": "m"}
    found = lines(
        "experts",
        models={"small": answers, "large": NOBODY, "own": {"local": True}},
        judge_model={**answers},
    )
    assert [(line.name, line.verdict) for line in found] == [
        ("expert small", "ok"),
        ("expert large", "FAIL"),
        ("expert own", "FAIL"),
        ("judge", "ok"),
    ]


@pytest.mark.parametrize(("name", "verdict"), [("expert-14b", "ok"), ("expert-32b", "FAIL")])
def test_an_expert_that_slime_should_serve_is_looked_for(
    tmp_path: Path, name: str, verdict: str
) -> None:
    config = tmp_path / "engines.yaml"
    config.write_text(SGLANG)
    models = {"small": {"sglang": name}}
    [line] = lines("experts", flags(sglang_config=config), models=models)
    assert line.verdict == verdict
    [line] = lines("experts", models=models)
    assert line.verdict == "FAIL" and "no sglang-config" in line.found


def test_the_search_is_asked_for_something() -> None:
    server = FakeRetrieval([{"id": "a", "content": "x"}])
    in_a_thread(server)
    [line] = lines("search", retrieval={"url": server.url})
    assert line.verdict == "ok" and len(server.calls) == 1
    [line] = lines("search")
    assert line.verdict == "note" and "no row may offer search" in line.found


def test_documents_of_the_search_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    [line] = lines("search", retrieval={"documents": path})
    assert line.verdict == "ok" and line.found.endswith(": 2")
    [line] = lines("search", retrieval={"documents": tmp_path / "missing.jsonl"})
    assert line.verdict == "FAIL"


def test_no_sandbox_is_needed_where_no_program_runs() -> None:
    [line] = lines("sandbox", run_code=False)
    assert line.verdict == "ok"


def test_the_method_s_checks_are_these() -> None:
    made: Any = Flags()
    names = list(METHOD(ToolOrchestraOptions()).checks(made))
    assert names == ["data", "experts", "search", "customer", "sandbox", "template"]
