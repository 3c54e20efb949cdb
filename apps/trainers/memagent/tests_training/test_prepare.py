"""Published files become data files, with contexts whose places nobody can know."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from turnwise.command import RunError
from turnwise.config import ConfigError
from turnwise.rows.reader import read_rows
from turnwise.testing import byte_tokenizer
from turnwise.testing.servers import FakeChat, in_a_thread, status

from apps.trainers.memagent.data.building import Builder
from apps.trainers.memagent.data.knowing import knows
from apps.trainers.memagent.data.prepare import Sorted, overlap, prepare
from apps.trainers.memagent.data.sources import Item, read_items
from apps.trainers.memagent.task import to_task


def hotpot(number: int, *, documents: int = 4, **changes: Any) -> dict[str, Any]:
    context = [[f"T{number}-{n}", [f"Fact {n}.", f" More {number}."]] for n in range(documents)]
    return {
        "_id": f"q{number}",
        "question": f"Question {number}?",
        "answer": f"answer {number}",
        "context": context,
        "supporting_facts": [[f"T{number}-1", 0], [f"T{number}-2", 1]],
        **changes,
    }


def write(path: Path, items: list[Any]) -> Path:
    path.write_text(json.dumps(items), encoding="utf-8")
    return path


def item(number: int) -> Item:
    documents = tuple(f"T{number}-{n}\ntext {n}" for n in range(3))
    return Item(f"Q{number}?", ("a",), documents, (0, 2), None, f"q{number}", "file: question 0")


def builder(seed: int = 1, size: int = 60) -> Builder:
    return Builder([f"P{n}\nother text {n}" for n in range(size)], seed=seed)


def test_an_item_stands_among_others_with_all_its_documents_once() -> None:
    built = builder().of_documents(item(1), 20)
    heads = [block.splitlines()[1] for block in built.text.split("\n\n")]
    assert len(set(heads)) == len(heads) == built.documents == 20
    assert [heads[place] for place in built.places] == ["T1-0", "T1-2"]


def test_supporting_documents_stand_everywhere_with_equal_chance() -> None:
    made = builder()
    tenths = Counter(made.of_documents(item(n), 20).places[0] // 2 for n in range(800))
    assert sum((tenths[i] - 80) ** 2 / 80 for i in range(10)) < 27.9  # p = 0.001


def test_a_seed_draws_the_same_context_again_and_another_one_another() -> None:
    assert builder().of_documents(item(1), 9) == builder().of_documents(item(1), 9)
    assert builder().of_documents(item(1), 9) != builder(2).of_documents(item(1), 9)


@pytest.mark.parametrize("tokens", [150, 151, 152, 153, 400, 999])
def test_the_length_in_tokens_is_exact(tokens: int) -> None:
    def count(text: str) -> int:
        return len(byte_tokenizer().encode(text, add_special_tokens=False))

    built = builder().of_tokens(item(1), tokens, count)
    assert count(built.text) == tokens
    assert all(text.splitlines()[0] in built.text for text in item(1).documents)


def test_a_length_that_can_not_be_had_is_refused() -> None:
    with pytest.raises(ConfigError, match="file: question 0.*there are 60"):
        builder().of_documents(item(1), 64)
    with pytest.raises(ConfigError, match="file: question 0.*more than 20"):
        builder().of_tokens(item(1), 20, len)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_hotpot_files_become_tasks_and_share_no_question(tmp_path: Path) -> None:
    train = write(tmp_path / "train.json", [hotpot(n) for n in range(6)])
    dev = write(tmp_path / "dev.json", [hotpot(n) for n in range(4, 9)])
    out = tmp_path / "data"
    prepare(
        ["--train", f"{train}", "--eval", f"{dev}", "--documents", "12", "--local-dir", f"{out}"]
    )
    rows = list(read_rows(out / "train.jsonl", input_key="prompt", label_key="label"))
    assert [row.prompt for row in rows] == [f"Question {n}?" for n in range(4)]
    for row in rows:
        task = to_task(row)
        assert isinstance(task.context, str) and task.context.count("Document ") == 12
    report = json.loads((out / "overlap.json").read_text("utf-8"))
    assert report == {"train": {"questions": 2, "answers": 2, "documents": 8}}


def test_m17_a_dev_file_is_of_the_training_questions_and_of_no_test(tmp_path: Path) -> None:
    train = write(tmp_path / "train.json", [hotpot(n) for n in range(8)])
    argv = ["--train", f"{train}", "--documents", "8", "--local-dir", f"{tmp_path}", "--dev"]
    prepare([*argv, "3"])
    dev, rest = (
        [row["prompt"] for row in read(tmp_path / name)] for name in ("dev.jsonl", "train.jsonl")
    )
    assert (len(dev), len(rest)) == (3, 5) and not set(dev) & set(rest)
    prepare([*argv, "3", "--seed", "2"])
    assert [row["prompt"] for row in read(tmp_path / "dev.jsonl")] != dev
    with pytest.raises(ConfigError, match="--dev 8: .* has 8 questions"):
        prepare([*argv, "8"])


def test_contexts_that_are_made_already_stay(tmp_path: Path) -> None:
    fields = {
        "prompt": [{"role": "user", "content": "Who?"}],
        "context": "Ann did it.",
        "reward_model": {"style": "rule", "ground_truth": ["Ann"]},
        "extra_info": {"index": 7, "num_docs": 200},
    }
    path = tmp_path / "hotpotqa.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([fields]), path)
    prepare(["--train", f"{path}", "--local-dir", f"{tmp_path}"])
    (row,) = read(tmp_path / "hotpotqa.jsonl")
    assert row == {
        "prompt": "Who?",
        "label": ["Ann"],
        "metadata": {"id": "7", "context": "Ann did it."},
    }


def test_a_question_with_two_answers_is_left_out_and_a_copy_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [hotpot(1), hotpot(1), hotpot(2), hotpot(2, answer="other"), hotpot(3)]
    path = write(tmp_path / "train.json", items)
    prepare(["--train", f"{path}", "--documents", "4", "--local-dir", f"{tmp_path}"])
    assert [row["prompt"] for row in read(tmp_path / "train.jsonl")] == [
        "Question 1?",
        "Question 3?",
    ]
    assert "2 a copy, 1 other answers" in capsys.readouterr().out
    dropped = [(row["question"], row["why"]) for row in read(tmp_path / "dropped.jsonl")]
    assert dropped == [
        ("Question 1?", "a copy"),
        ("Question 2?", "a copy"),
        ("Question 2?", "other answers"),
    ]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"question": ""}, "question"),
        ({"answer": None}, "label"),
        ({"context": []}, "context"),
        ({"context": [["T", "text"]]}, r"context\[0\]"),
        ({"supporting_facts": [["gone", 0]]}, "supporting_facts"),
    ],
)
def test_what_is_no_item_is_named_by_its_place(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = write(tmp_path / "train.json", [hotpot(0), hotpot(1, **change)])
    with pytest.raises(ConfigError, match=rf"train.json: question 1.*{named}"):
        read_items(path)


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        (r"\boxed{Ann}", True),
        ("It was ann, surely.", True),
        ("<think>Ann?</think>I don't know.", False),
        ("Anna", False),
        ("", False),
    ],
)
def test_a_model_knows_what_it_says_in_a_box_or_in_words(answer: str, known: bool) -> None:
    assert knows(["no idea", answer], ["Ann"]) is known


def test_what_a_model_knows_is_left_out_and_is_asked_once(tmp_path: Path) -> None:
    endpoint = FakeChat(lambda messages: "answer 1" if "Question 1?" in str(messages) else "?")
    in_a_thread(endpoint)
    path = write(tmp_path / "train.json", [hotpot(n) for n in range(3)])
    argv = ["--train", f"{path}", "--documents", "4", "--local-dir", f"{tmp_path / 'data'}"]
    argv += ["--known-base-url", f"{endpoint.url}/v1", "--known-model", "m"]
    endpoint.misbehave = lambda call: status(400) if call.number == 4 else None
    with pytest.raises(RunError, match="goes on from there"):
        prepare(argv)
    asked = len((tmp_path / "data" / "known-train.jsonl").read_text("utf-8").splitlines())
    endpoint.misbehave = lambda call: None
    before = len(endpoint.calls)
    prepare(argv)
    assert len(endpoint.calls) - before == 6 - asked
    prompts = [row["prompt"] for row in read(tmp_path / "data" / "train.jsonl")]
    assert prompts == ["Question 0?", "Question 2?"]
    [known] = read(tmp_path / "data" / "dropped.jsonl")
    assert (known["id"], known["why"], known["file"]) == ("q1", "known", "train.json")
    with pytest.raises(ConfigError, match="is of the model m, not of n"):
        prepare([*argv[:-1], "n"])


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    train = ["--train", f"{write(tmp_path / 'train.json', [hotpot(0)])}"]
    for argv in (
        [],
        [*train, "--documents", "3", "--tokens", "100", "--tokenizer", "x"],
        [*train, "--tokens", "100"],
        [*train, "--known-model", "m"],
        ["--eval", train[1], "--dev", "1"],
        ["--train", f"{write(tmp_path / 'dropped.json', [hotpot(0)])}"],
    ):
        with pytest.raises(ConfigError):
            prepare(argv)


def test_overlap_counts_each_once() -> None:
    found = {"questions": 1, "answers": 1, "documents": 3}
    assert overlap(Sorted([item(1), item(2)], []), [item(2)]) == found
    assert overlap(Sorted([item(1)], [(item(2), "a copy")]), [item(2)]) == found
