"""Published files become data files; what does not fit is named by file and line."""

import json
from operator import eq
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.answers.labels import SameAnswers
from turnwise.config import ConfigError
from turnwise.method import make_method

from apps.trainers.agentflow.data.prepare import (
    grams,
    normalise,
    overlap,
    prepare,
    without_copies,
)
from apps.trainers.agentflow.data.sources import Row, read_rows

FRAMED = (
    "Solve the following math problem step by step. The last line is Answer: $Answer.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


def jsonl(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def rows_of(**labels: str) -> dict[str, Row]:
    return {normalise(text): Row("x", text, label, {}) for text, label in labels.items()}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_published_form_gives_the_same_row(tmp_path: Path) -> None:
    parquet = tmp_path / "dapo.parquet"
    record = {
        "data_source": "math_dapo",
        "prompt": chat(FRAMED.format("What is $1+1$?\n\nUse tens.")),
        "ability": "MATH",
        "reward_model": {"ground_truth": "2", "style": "rule"},
        "extra_info": {"index": "9a9b"},
        "unused": 1.5,
    }
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), parquet)
    (row,) = read_rows(parquet)
    assert (row.text, row.label) == ("What is $1+1$?\n\nUse tens.", "2")
    assert row.metadata == {"data_source": "math_dapo", "ability": "MATH", "index": "9a9b"}
    lines = jsonl(
        tmp_path / "aime.jsonl",
        {"prompt": chat("Q"), "label": "204"},
        {"ID": "2024-I-4", "Problem": "Q", "Solution": "...", "Answer": 204},
        "",
        {"question": "Q", "answer": " 204 "},
    )
    found = list(read_rows(lines))
    assert {(row.text, row.label) for row in found} == {("Q", "204")}
    assert found[1].metadata == {"id": "2024-I-4"} and found[2].where.endswith("aime.jsonl:4")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{", "not valid JSON"),
        ([1], "expected a JSON object"),
        ({"label": "1"}, "needs one of prompt, problem, question, has label"),
        (
            {"prompt": "Q", "text": "1"},
            "needs one of label, answer, reward_model, has prompt, text",
        ),
        ({"prompt": [{"role": "system", "content": "x"}], "label": "1"}, "no message of a user"),
        ({"prompt": 3, "label": "1"}, "prompt: expected a text or a list of messages, found 3"),
        ({"prompt": "  ", "label": "1"}, "prompt: is empty"),
        ({"prompt": FRAMED.format(" "), "label": "1"}, "the question is empty"),
        ({"prompt": "Q", "label": " "}, "label: is empty"),
        ({"prompt": "Q", "label": ["1", "2"]}, "label: expected a text or a number"),
        ({"prompt": "Q", "reward_model": {}}, "reward_model: expected a text or a number"),
        ({"prompt": "Q", "label": True}, "label: expected a text or a number"),
        ('{"prompt": "Q", "label": NaN}', "label: is nan"),
        ('{"prompt": "$\\frac12$?", "label": 1}', "prompt: holds the control character"),
        ('{"prompt": "Q", "label": "\\frac12"}', "label: holds the control character"),
        ('{"prompt": "a \\ud83d", "label": 1}', "half of a character"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, row: object, words: str) -> None:
    path = jsonl(tmp_path / "bad.jsonl", {"prompt": "fine", "label": "1"}, row)
    with pytest.raises(ConfigError, match=r"bad\.jsonl:2: ") as caught:
        list(read_rows(path))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.parquet", b"PAR1 is not enough", "no readable parquet after row 0"),
        ("x.csv", b"a,b", "must end in .jsonl (one JSON object a line) or .parquet"),
        ("x.jsonl", b"\xff\xfe", "x.jsonl:1: is UTF-16"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        list(read_rows(tmp_path / name))
    assert words in str(caught.value)


def test_copies_become_one_row_and_those_that_disagree_none() -> None:
    rows = [
        Row("f:1", "What is 1 + 1?", "2", {}),
        Row("f:2", " what  is 1 + 1?", "2", {}),
        Row("f:3", "Odd?", "1", {}),
        Row("f:4", "odd?", "3", {}),
    ]
    found = without_copies("f", rows, eq, strict=False)
    assert [row.label for row in found.rows.values()] == ["2"]
    assert (found.read, found.conflicts) == (4, 1)
    with pytest.raises(ConfigError, match="f:4: the question of f:3 with the answer '3'"):
        without_copies("f", rows, eq, strict=True)


def test_copies_whose_answers_are_the_same_to_the_grader_do_not_disagree() -> None:
    labels = ["033", "33", "33.0", "$33$", "0.5", r"\frac{1}{2}", "1/2"]
    rows = [Row(f"f:{n}", "Half?" if n > 3 else "Q?", x, {}) for n, x in enumerate(labels)]
    with SameAnswers() as same:
        found = without_copies("f", rows, same, strict=True)
    assert [row.label for row in found.rows.values()] == ["033", "0.5"]


def test_a_chat_as_a_json_string_and_a_worked_solution_are_converted(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "gsm8k.jsonl",
        {"prompt": json.dumps(chat("Q")), "label": "First <<3*4=12>>12.\n#### 1,033"},
        {"prompt": chat("Q"), "reward_model": {"ground_truth": '["1033"]', "style": "rule"}},
    )
    assert [(row.text, row.label) for row in read_rows(path)] == [("Q", "1,033"), ("Q", "1033")]


def test_a_file_without_rows_is_an_error() -> None:
    with pytest.raises(ConfigError, match="f: holds no rows"):
        without_copies("f", [], eq, strict=False)


WORDS = " ".join(f"word{number}" for number in range(20))


def test_a_run_of_thirteen_words_is_an_overlap_and_twelve_are_none() -> None:
    evaluation = rows_of(**{f"Before that, {WORDS}.": "1"})
    thirteen = " ".join(WORDS.split()[3:16])
    twelve = " ".join(WORDS.split()[3:15])
    train = rows_of(**{f"Let {thirteen} be so.": "2", f"Let {twelve} be so.": "3"})
    found = overlap(train, evaluation)
    assert [pair[0] for pair in found.similar] == [normalise(f"Let {thirteen} be so.")]
    assert not found.equal


def test_a_stock_phrase_is_no_overlap() -> None:
    evaluation = rows_of(**{f"Find it. {WORDS}": "1"})
    few = rows_of(**{f"Question {n}: {WORDS}": "2" for n in range(10)})
    many = rows_of(**{f"Question {n}: {WORDS}": "2" for n in range(11)})
    assert len(overlap(few, evaluation).similar) == 10
    assert not overlap(many, evaluation).similar


def test_equal_questions_are_counted_once_and_not_as_similar() -> None:
    found = overlap(rows_of(**{WORDS: "1"}), rows_of(**{WORDS.upper(): "1"}))
    assert found.equal == (WORDS,) and not found.similar


@given(st.text())
def test_any_text_has_grams_if_it_has_words(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)
    assert all(1 <= len(gram.split()) <= 13 for gram in grams(text))


def test_the_command_writes_rows_and_says_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = jsonl(
        tmp_path / "train.jsonl",
        *({"prompt": chat(text), "label": "1"} for text in ("New", "new", WORDS, f"So {WORDS}")),
    )
    evaluation = jsonl(tmp_path / "aime.jsonl", {"id": 7, "problem": WORDS, "answer": 1})
    out = tmp_path / "data"
    words = ["--train", str(train), "--eval", str(evaluation), "--local-dir", str(out)]
    prepare(words)
    assert read(out / "aime.jsonl") == [{"prompt": WORDS, "label": "1", "metadata": {"id": "7"}}]
    assert [row["prompt"] for row in read(out / "train.jsonl")] == ["New", f"So {WORDS}"]
    assert read(out / "train.jsonl")[0]["metadata"] == {"id": "train-0"}
    said = capsys.readouterr().out
    assert "2 questions of 4 rows, copies left out: 1, 1 of an evaluation file left out" in said
    assert "train and aime: 1 equal questions, 1 more with 13 words" in said
    pairs = json.loads((out / "overlap.json").read_text())["train"]["aime"]
    assert pairs["similar_pairs"] == [{"train": normalise(f"So {WORDS}"), "eval": WORDS}]
    prepare([*words, "--drop", "grams"])
    assert [row["prompt"] for row in read(out / "train.jsonl")] == ["New"]


def test_a_source_is_never_written_over(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"prompt": "Q", "label": "1"})
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="is a source"):
        prepare(["--train", str(path), "--local-dir", str(tmp_path)])
    assert path.read_bytes() == before


def test_two_sources_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one = jsonl(tmp_path / "a.jsonl", {"prompt": "Q", "label": "1"})
    two = jsonl(tmp_path / "b" / "a.jsonl", {"prompt": "Q", "label": "1"})
    with pytest.raises(ConfigError, match=r"two sources would be written to a\.jsonl"):
        prepare(["--train", str(one), "--eval", str(two), "--local-dir", str(tmp_path / "out")])


def test_no_source_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="name at least one source"):
        prepare([])


def test_the_generated_problems_are_the_main_jobs_own_with_its_planner(tmp_path: Path) -> None:
    prepare(["--local-dir", str(tmp_path), "--generated"])
    method = make_method("agentflow", {"helpers": "rules"})
    for split in ("train", "held-out"):
        path = tmp_path / f"generated_{split.replace('-', '_')}.jsonl"
        written = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert [(row["prompt"], row["label"], row["metadata"]["id"]) for row in written] == [
            (row.prompt, row.label, row.id) for row in method.rows(split)
        ]
    assert (tmp_path / "policy/model.safetensors").stat().st_size > 1_000_000
    with pytest.raises(ConfigError, match="give --generated alone"):
        prepare(["--local-dir", str(tmp_path), "--generated", "--train", "x.jsonl"])
