from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from taubench.tau2 import task_by_id
from turnwise.config import ConfigError
from turnwise.rows.reader import read_rows

from apps.trainers.toolorchestra.customer_task import CustomerTask
from apps.trainers.toolorchestra.data.prepare import prepare
from apps.trainers.toolorchestra.method import ToolOrchestraMethod
from apps.trainers.toolorchestra.options import ToolOrchestraOptions

PRICES = {"input_tokens_per_million": 0.8, "output_tokens_per_million": 3.2}


def published(eid: str = "science____7", **changes: Any) -> dict[str, Any]:
    """A row as it is published."""
    metadata = {
        "eid": eid,
        "category": "qa",
        "model_mapping": {
            "search-1": "M",
            "reasoner-1": "M",
            "answer-1": "M",
            "answer-math-1": "N",
        },
        "tool_pricing": {"M": PRICES, "N": {"input": 0.1, "output": 0.2}},
        "pref_vec": {"accuracy": 3, "cost": 0.1, "latency": 0.1, "answer-1": 3},
        **changes.pop("metadata", {}),
    }
    return {"problem": f"Why {eid}?", "answer": "42", "metadata": metadata, "tools": [], **changes}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(tmp_path: Path, *words: object) -> None:
    prepare([*map(str, words), "--local-dir", str(tmp_path / "out")])


def test_a_published_row_becomes_one_that_the_method_takes(tmp_path: Path) -> None:
    source = write(tmp_path / "train.jsonl", published())
    run(tmp_path, "--train", source)
    [row] = read(tmp_path / "out/train.jsonl")
    assert (row["prompt"], row["label"]) == ("Why science____7?", "42")
    experts = row["metadata"]["experts"]
    assert [(one["role"], one["tool"], one["model"]) for one in experts] == [
        ("search-1", "search", "M"),
        ("reasoner-1", "enhance_reasoning", "M"),
        ("answer-1", "answer", "M"),
        ("answer-math-1", "answer", "N"),
    ]
    assert (experts[0]["read_price"], experts[3]["write_price"]) == (0.8, 0.2)
    model = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    method = ToolOrchestraMethod(
        ToolOrchestraOptions(
            models={"M": model, "N": model}, retrieval={"url": "http://127.0.0.1:9"}
        )
    )
    [loaded] = read_rows(tmp_path / "out/train.jsonl", input_key="prompt", label_key="label")
    task = method.task(loaded)
    assert task.eid == "science____7" and task.preferences["answer-1"] == 3


def test_prices_per_token_become_prices_per_million(tmp_path: Path) -> None:
    prices = {name: price / 1e6 for name, price in PRICES.items()}
    row = published(metadata={"tool_pricing": {"M": prices, "N": prices}})
    run(tmp_path, "--train", write(tmp_path / "train.jsonl", row))
    [row] = read(tmp_path / "out/train.jsonl")
    assert row["metadata"]["experts"][0]["write_price"] == pytest.approx(3.2)


def test_a_negative_weight_of_cost_is_never_a_reward_for_expense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = published(metadata={"pref_vec": {"accuracy": 1.0, "cost": -0.3, "latency": -0.1}})
    run(tmp_path, "--eval", write(tmp_path / "eval.jsonl", row))
    [row] = read(tmp_path / "out/eval.jsonl")
    assert row["metadata"]["preferences"] == {"accuracy": 1.0, "cost": 0.3, "latency": 0.1}
    assert "2 negative weights" in capsys.readouterr().out


def test_training_tasks_of_an_evaluation_file_are_left_out_by_their_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = [published(f"science____{number}") for number in range(4)]
    train.append(published("law____1", problem="why  SCIENCE____3?"))
    evaluation = [published("science____2", problem="in other words"), published("science____3")]
    run(
        tmp_path,
        "--train", write(tmp_path / "train.jsonl", *train),
        "--eval", write(tmp_path / "test.jsonl", *evaluation),
    )  # fmt: skip
    kept = [row["metadata"]["id"] for row in read(tmp_path / "out/train.jsonl")]
    assert kept == ["science____0", "science____1"]
    [report] = read(tmp_path / "out/overlap.json")
    found = report["train"]["test"]
    assert (found["by_id"], found["by_question"]) == (2, 1)
    assert found["ids"] == ["science____2", "science____3"] and found["domains"] == {"science": 2}
    assert "2 tasks of one id, 1 more of one question" in capsys.readouterr().out


def conversation(eid: str, **metadata: Any) -> dict[str, Any]:
    """A row of a conversation as it is published."""
    given = {
        "category": "func_call",
        "model_mapping": {"expert-1": "M", "expert-2": "N"},
        "pref_vec": {"accuracy": 1, "cost": 0.3, "expert-1": 2},
        "user_llm": "gpt-5",
        **metadata,
    }
    return published(eid, problem="", answer="", metadata=given)


def test_a_conversation_becomes_a_customer_that_the_method_plays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = task_by_id("mock", "create_task_1")
    changed = {**task.raw, "ticket": "Another ticket."}
    rows = [
        conversation("mock____create_task_1", example=json.dumps(task.raw)),
        conversation("mock____create_task_1", example=changed),
        conversation("telecom____update_task_1", domain="mock"),
        conversation("bank____1", example={"id": "1"}),
    ]
    run(tmp_path, "--train", write(tmp_path / "train.jsonl", *rows))
    out = capsys.readouterr().out
    assert "3 of 4 rows; 3 conversations (mock 3); 1 conversations left out (bank 1)" in out
    assert "customers by gpt-5 3 in the rows: a run has its own" in out
    model = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    method = ToolOrchestraMethod(ToolOrchestraOptions(models={"M": model, "N": model}))
    loaded = read_rows(tmp_path / "out/train.jsonl", input_key="prompt", label_key="label")
    same, other, third = [method.task(row) for row in loaded]
    assert isinstance(same, CustomerTask) and isinstance(other, CustomerTask)
    assert isinstance(third, CustomerTask) and third.task.id == "update_task_1"
    assert same.task == task and same.task.task_set == "26.3"
    assert (other.task.id, other.task.ticket) == (task.id, "Another ticket.")
    assert [(one.role, one.tool, one.model) for one in same.experts] == [
        ("expert-1", "call_expert", "M"),
        ("expert-2", "call_expert", "N"),
    ]
    assert (same.experts[1].write_price, same.preferences["expert-1"]) == (0.2, 2)


def test_conversations_that_two_files_share_are_told_by_task_id_written_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = [conversation(f"{name}____1") for name in ("bank", "law")]
    train += [conversation(f"mock____{name}_task_1") for name in ("create", "update")]
    test = [conversation("bank____1"), conversation("mock____update_task_1")]
    run(
        tmp_path,
        "--train", write(tmp_path / "train.jsonl", *train),
        "--eval", write(tmp_path / "test.jsonl", *test),
    )  # fmt: skip
    [row] = read(tmp_path / "out/train.jsonl")
    assert row["metadata"]["task_id"] == "create_task_1"
    [report] = read(tmp_path / "out/overlap.json")
    found = report["train"]["test"]
    assert found["ids"] == ["mock____update_task_1"] and found["not_written"] == {"bank": 1}
    assert "of the conversations left out 1 are in both (bank 1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (conversation("mock____none"), "mock has no task 'none', and no example"),
        (conversation("mock____1", example=[]), "example: expected a task"),
        (conversation("mock____1", example={"id": "1"}), "is not a τ²-bench task"),
        (
            conversation("mock____1", example={"id": "2", "user_scenario": {"instructions": "x"}}),
            "example: is task '2', the eid says '1'",
        ),
    ],
)
def test_a_conversation_without_its_task_is_refused(tmp_path: Path, row: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"train.jsonl:1: .*{words}"):
        run(tmp_path, "--train", write(tmp_path / "train.jsonl", row))


def test_questions_without_experts_have_those_of_the_run(tmp_path: Path) -> None:
    source = write(tmp_path / "frames.jsonl", {"prompt": "Who?", "answer": "Ada", "id": 7})
    run(tmp_path, "--eval", source)
    [row] = read(tmp_path / "out/frames.jsonl")
    assert row == {"prompt": "Who?", "label": "Ada", "metadata": {"id": "7"}}


def test_frames_and_hle_are_read_as_they_are_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = {"Unnamed: 0": 3, "Prompt": "Who?", "Answer": "Ada", "wiki_links": "['https://a']"}
    hle = {"id": "66e8", "question": "Which?", "image": "", "answer": "B", "answer_type": "exact"}
    seen = {**hle, "id": "66e9", "image": "data:image/png;base64,AAAA"}
    files = [write(tmp_path / "frames.jsonl", frames), write(tmp_path / "hle.jsonl", hle, seen)]
    run(tmp_path, "--eval", *files)
    [row] = read(tmp_path / "out/frames.jsonl")
    assert (row["prompt"], row["label"]) == ("Who?", "Ada")
    [row] = read(tmp_path / "out/hle.jsonl")
    assert row == {"prompt": "Which?", "label": "B", "metadata": {"id": "66e8"}}
    assert "1 rows with a picture left out" in capsys.readouterr().out


def test_what_the_policy_is_told_of_a_model_is_written_into_the_table(tmp_path: Path) -> None:
    abilities = tmp_path / "abilities.json"
    abilities.write_text('{"N": "long sums"}')
    source = write(tmp_path / "train.jsonl", published())
    run(tmp_path, "--train", source, "--abilities", abilities)
    [row] = read(tmp_path / "out/train.jsonl")
    assert [one["ability"] for one in row["metadata"]["experts"]] == ["", "", "", "long sums"]


def test_models_that_a_run_does_not_have_leave_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = published(metadata={"model_mapping": {"search-1": "N", "answer-1": "M"}})
    source = write(tmp_path / "train.jsonl", published(), alone)
    run(tmp_path, "--train", source, "--models", "N")
    [row] = read(tmp_path / "out/train.jsonl")
    assert [one["role"] for one in row["metadata"]["experts"]] == ["answer-math-1"]
    out = capsys.readouterr().out
    assert "lines of other models left out: M 4" in out
    assert "1 rows left out that nobody answers then" in out


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (published(problem=""), "has none of problem, question, prompt"),
        (published(answer=None), "answer"),
        (published(metadata={"model_mapping": {"judge-1": "M"}}), "judge-1: is of no tool"),
        (published(metadata={"tool_pricing": {}}), "tool_pricing.M: is needed"),
        (published(metadata={"tool_pricing": {"M": {}, "N": {}}}), "expected a price under one of"),
        (published(metadata={"pref_vec": {"accuracy": "x"}}), "pref_vec.accuracy"),
        (published(metadata={"model_mapping": "{"}), "no valid JSON"),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(tmp_path: Path, row: Any, words: str) -> None:
    source = write(tmp_path / "train.jsonl", published(), row)
    with pytest.raises(ConfigError, match=f"train.jsonl:2: .*{words}"):
        run(tmp_path, "--train", source)
    assert not (tmp_path / "out/train.jsonl").exists()


def test_no_file_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name at least one file"):
        run(tmp_path)
