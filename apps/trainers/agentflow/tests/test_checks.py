"""AgentFlow's lines of `check`: what would fail on the nodes is said before the run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from turnwise.preflight import Line, run_checks

from apps.trainers.agentflow.checks import make_checks
from apps.trainers.agentflow.config import AgentFlowOptions
from apps.trainers.agentflow.method import METHOD

HOST = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "deadline_s": 0.5, "patience_s": 0.0}
SGLANG = "sglang:\n  - name: planner\n    update_weights: true\n  - name: base\n"


@dataclass
class Flags:
    """slime's flags, as a plan holds them."""

    options: dict[str, list[str]] = field(default_factory=dict)

    def value(self, name: str) -> str | None:
        values = self.options.get(name)
        return values[0] if values else None


def flags(**given: Any) -> Flags:
    return Flags(
        {
            f"--{name.replace('_', '-')}": [
                str(one) for one in (value if isinstance(value, list) else [value])
            ]
            for name, value in given.items()
        }
    )


def lines(only: str, given: Flags, **options: Any) -> list[Line]:
    """The lines of one check."""
    made: Any = given
    checks = make_checks(AgentFlowOptions(**{"helpers": "rules", **options}), made)
    return list(run_checks({only: checks[only]}))


def data(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def keys(path: Path, **more: Any) -> Flags:
    return flags(prompt_data=path, input_key="prompt", label_key="label", **more)


def test_every_row_of_every_data_file_is_read_and_its_answer_graded(tmp_path: Path) -> None:
    train = data(tmp_path / "train.jsonl", {"prompt": "1 + 1?", "label": 2})
    held = data(
        tmp_path / "held.jsonl", *[{"prompt": f"{n}?", "label": str(n)} for n in range(450)]
    )
    found = lines("data", keys(train, eval_prompt_data=["aime", held]))
    assert [(line.name, line.verdict) for line in found] == [("data", "ok"), ("data aime", "ok")]
    assert found[1].found.endswith("450 questions; the rule grades 150 of 150 answers")


def test_a_row_that_is_no_question_is_named_by_file_and_line(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "1 + 1?", "label": "2"},
        {"prompt": "1 + 2?", "label": None},
    ]
    (line,) = lines("data", keys(data(tmp_path / "train.jsonl", *rows)))
    assert line.verdict == "FAIL" and "train.jsonl:2: label" in line.found


def test_an_answer_that_no_rule_compares_needs_a_judge_model(tmp_path: Path) -> None:
    path = data(tmp_path / "train.jsonl", {"prompt": "Who?", "label": "the son of a king"})
    (line,) = lines("data", keys(path))
    assert line.verdict == "note" and "0 of 1 answers, not 'the son of a king'" in line.found
    (line,) = lines("data", keys(path), models={"judge": HOST})
    assert line.verdict == "ok" and "judge model decides" in line.found


def test_a_run_without_data_fails() -> None:
    (line,) = lines("data", flags())
    assert line.verdict == "FAIL" and "prompt-data" in line.remedy


@pytest.mark.parametrize(
    ("model", "file", "verdict", "words"),
    [
        ({"local": True}, SGLANG, "FAIL", "hold no engine"),
        ({"sglang": "base"}, None, "FAIL", "gets no sglang-config"),
        ({"sglang": "base"}, SGLANG, "ok", "slime serves base"),
        ({"sglang": "bass"}, SGLANG, "FAIL", "no model 'bass'; there are planner, base"),
        ({"sglang": "base"}, "", "FAIL", "there are none"),
        (HOST, SGLANG, "FAIL", "frozen models do not answer"),
    ],
)
def test_every_frozen_model_is_looked_for(
    tmp_path: Path, model: dict[str, Any], file: str | None, verdict: str, words: str
) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(file or "")
    given = flags() if file is None else flags(sglang_config=path)
    (line,) = lines("models", given, helpers="models", models={"base": model})
    assert (line.name, line.verdict) == ("model base", verdict) and words in line.found


def test_a_file_of_engines_that_is_on_the_nodes_alone_is_skipped(tmp_path: Path) -> None:
    given = flags(sglang_config=tmp_path / "absent.yaml")
    options: dict[str, Any] = {"helpers": "models", "models": {"base": {"sglang": "base"}}}
    assert lines("models", given, **options)[0].verdict == "skip"


def test_rules_need_no_model_but_a_judge_may_be_one() -> None:
    assert [line.verdict for line in lines("models", flags())] == ["ok"]
    found = lines("models", flags(), models={"judge": HOST})
    assert [(line.name, line.verdict) for line in found] == [
        ("models", "ok"), ("model judge", "FAIL"),
    ]  # fmt: skip


def test_the_walls_of_this_machine_are_named() -> None:
    (line,) = lines("sandbox", flags(), sandbox={"packages": ()})
    assert line.verdict == "ok" or "isolation" in line.found
    (line,) = lines("sandbox", flags(), tools=("base_generator",))
    assert (line.verdict, line.found) == ("ok", "no tool runs code")


def test_a_package_that_programs_are_promised_and_that_is_not_here_is_noted() -> None:
    (line,) = lines("sandbox", flags(), sandbox={"packages": ("no_such_package",)})
    assert line.verdict in ("note", "FAIL") and "no_such_package" in line.found


def test_documents_are_read_where_a_tool_wants_them(tmp_path: Path) -> None:
    path = data(tmp_path / "documents.jsonl", {"text": "An otter."}, {"title": "x"})
    assert lines("documents", flags())[0].verdict == "ok"
    (line,) = lines("documents", flags(), tools=("search",))
    assert line.verdict == "FAIL" and "documents" in line.remedy
    (line,) = lines("documents", flags(), tools=("search",), documents=path)
    assert line.verdict == "FAIL" and "documents.jsonl:2" in line.found


@pytest.mark.parametrize(("room", "verdict"), [(512, "ok"), (100, "FAIL")])
def test_the_first_prompt_of_the_longest_question_must_fit(
    tmp_path: Path, room: int, verdict: str
) -> None:
    rows = [{"prompt": "1 + 1?", "label": "2"}, {"prompt": "1 + 1" * 20, "label": "2"}]
    given = keys(
        data(tmp_path / "train.jsonl", *rows),
        hf_checkpoint=METHOD.shipped,
        rollout_max_context_len=room,
        rollout_max_response_len=64,
    )
    (line,) = lines("template", given, prompt="compact", sandbox={"packages": ()})
    assert line.verdict == verdict and "longest question has" in line.found


def test_a_policy_without_a_chat_template_fails_and_one_elsewhere_is_skipped(
    tmp_path: Path,
) -> None:
    (line,) = lines("template", flags(hf_checkpoint=tmp_path / "absent"))
    assert line.verdict == "skip"
    (line,) = lines("template", flags(hf_checkpoint=tmp_path))
    assert line.verdict == "FAIL" and "instruction-tuned" in line.remedy
