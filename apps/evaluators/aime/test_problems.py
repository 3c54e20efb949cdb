"""Data files: what is read, and the one error for what is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from turnwise.config import ConfigError
from turnwise.evaluation.tasks import check_tasks
from turnwise.rows import Row

from apps.evaluators.aime.benchmark import Aime
from apps.evaluators.aime.problems import Keys, left_out, load_data, sample


def load(*names: object, input_key: str = "prompt", label_key: str = "label") -> list[Row]:
    rows = load_data([str(name) for name in names], Keys(input_key, label_key))
    check_tasks([Aime().task(row) for row in rows])
    return rows


def write(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_rows_with_text_conversation_and_number_are_problems(tmp_path: Path) -> None:
    path = write(
        tmp_path / "aime-2024.jsonl",
        {"prompt": "Find $x$.", "label": " 204 ", "more": 1},
        "",
        {"prompt": [{"role": "user", "content": "One\u2028two?"}], "label": 25},
    )
    rows = load(path)
    assert [(row.id, row.prompt, row.label) for row in rows] == [
        ("aime-2024/1", "Find $x$.", " 204 "),
        ("aime-2024/2", "One\u2028two?", 25),
    ]
    assert [Aime().task(row).label for row in rows] == ["204", "25"]
    assert load(f"old={path}")[0].id == "old/1"


def test_other_names_of_the_keys_are_options(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"problem": "Find $x$.", "answer": "7"})
    assert load(path, input_key="problem", label_key="answer")[0].label == "7"


def test_a_problem_is_known_by_question_and_label_wherever_it_stands() -> None:
    def key(question: str, label: object) -> str:
        return Aime().task(Row(question, label, id="a/1")).key

    assert key("Find $x$.", "7") == key("Find $x$. ", " 7") == key("Find $x$.", "$007$")
    assert key("Find $x$.", "7") != key("Find $x$.", "8")


ROW = {"prompt": "q", "label": "1"}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "holds no row"),
        (["{"], "a.jsonl:1: not valid JSON"),
        ([{"question": "q", "label": "1"}], "no 'prompt'; found label, question. --input-key"),
        ([{"prompt": "q", "answer": "1"}], "no 'label'; found answer, prompt. --label-key"),
        ([{"prompt": "q", "label": True}], "label: expected a text or a number"),
        ([{"prompt": "q", "label": ""}], "label: is empty"),
        (['{"prompt": "q", "label": 1e400}'], "a.jsonl:1: label: is inf"),
        ([{"prompt": [{"role": "system", "content": "q"}], "label": 1}], "one message of the user"),
        ([{"prompt": [{"role": "user", "content": " "}], "label": 1}], "expected a question"),
        ([ROW, {"prompt": "r", "label": 2}, ROW], "a.jsonl:3: the question of a.jsonl:1 again"),
        ([ROW, {"prompt": "q", "label": "01"}], "a.jsonl:2: the question of a.jsonl:1 again"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, rows: list[object], words: str) -> None:
    path = write(tmp_path / "a.jsonl", *rows) if rows else tmp_path / "a.jsonl"
    path.touch()
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert words in str(caught.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("question", "form"),
    [
        ("The last line of your response should be of the form Answer: $Answer. Q?", "Answer: "),
        ('Q? Remember to put your answer on its own line after "Answer:".', "Answer: "),
        ("Q? Put the final answer after ####.", "####"),
        ("Q? Put it between <answer> and </answer>.", "<answer>"),
        ("Q? Give the final answer as JSON.", "JSON"),
    ],
)
def test_a_question_that_asks_for_another_form_of_answer_is_noticed(
    tmp_path: Path, question: str, form: str
) -> None:
    path = write(tmp_path / "a.jsonl", ROW, {"prompt": question, "label": "1"})
    with pytest.raises(ConfigError, match="a.jsonl:2: prompt: the question itself asks for") as e:
        load(path)
    assert form in str(e.value) and "agentflow/data:prepare" in str(e.value)


@pytest.mark.parametrize(
    "question", ["Put your final answer in \\boxed{}. Q?", "Answer the question: what is JSON?"]
)
def test_a_question_that_asks_for_a_box_or_for_nothing_is_fine(
    tmp_path: Path, question: str
) -> None:
    assert load(write(tmp_path / "a.jsonl", {"prompt": question, "label": "1"}))


def test_parquet_a_byte_order_mark_and_a_slice_are_read(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n}", "label": f"{n}", "metadata": {"year": n}} for n in range(4)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    write(tmp_path / "b.jsonl", *rows)
    (tmp_path / "b.jsonl").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "b.jsonl").read_bytes())
    first, second = load(tmp_path / "a.parquet"), load(f"a={tmp_path / 'b.jsonl'}")
    assert [(row.prompt, row.label) for row in first] == [(row.prompt, row.label) for row in second]
    assert [problem.metadata for problem in first] == [{"year": n} for n in range(4)]
    (last,) = load(f"{tmp_path / 'b.jsonl'}@[-1:]")
    assert (last.id, last.prompt) == ("b/1", "q3")


def test_frames_and_hle_are_read_as_they_are_published(tmp_path: Path) -> None:
    frames = tmp_path / "test.tsv"
    frames.write_text(
        "Unnamed: 0\tPrompt\tAnswer\twikipedia_link_1\treasoning_types\n"
        '0\t"Who wrote ""Emma"",\nand when?"\tJane Austen, 1815\thttps://a\tMultiple constraints\n'
        "1\tHow old was she?\t40\thttps://b\tNumerical reasoning\n",
        encoding="utf-8",
    )
    rows = load(f"frames={frames}", input_key="Prompt", label_key="Answer")
    assert [(row.id, row.prompt, row.label) for row in rows] == [
        ("frames/1", 'Who wrote "Emma",\nand when?', "Jane Austen, 1815"),
        ("frames/2", "How old was she?", "40"),
    ]
    hle = {
        "id": "66e8", "question": "Which group?", "image": "", "image_preview": None,
        "answer": "$S_5$", "answer_type": "exactMatch", "rationale": "...", "canary": "BENCHMARK",
    }  # fmt: skip
    seen = {**hle, "id": "66e9", "question": "What is shown?", "image": "data:image/png;base64,AA"}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([hle, seen]), tmp_path / "hle.parquet")
    (row,) = load(tmp_path / "hle.parquet", input_key="question", label_key="answer")
    assert (row.prompt, row.label) == ("Which group?", "$S_5$")
    assert left_out([str(tmp_path / "hle.parquet"), str(frames), "sample"]) == 1


def test_the_answer_of_a_worked_solution_is_its_label(tmp_path: Path) -> None:
    label = "First do this <<3*4=12>>12.\nThen that.\n#### 10"
    (problem,) = load(write(tmp_path / "a.jsonl", {"prompt": "q", "label": label}))
    assert (problem.label, Aime().task(problem).label) == (label, "10")


@pytest.mark.parametrize("again", ["q", " q\n"])
def test_a_question_of_two_data_sets_would_count_twice(tmp_path: Path, again: str) -> None:
    first = write(tmp_path / "a.jsonl", {"prompt": "p", "label": "1"}, ROW)
    second = write(tmp_path / "b.jsonl", {"prompt": again, "label": "1"})
    with pytest.raises(ConfigError, match=r"b/1 is the question of a/2 again"):
        load(first, second)


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere.jsonl: No such file"):
        load(tmp_path / "nowhere.jsonl")
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(ConfigError, match="a.jsonl:1: not UTF-8 at byte 4"):
        load(path)


def test_data_sets_of_one_name_and_names_that_no_id_can_hold_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROW)
    with pytest.raises(ConfigError, match="has the name 'a' already"):
        load(path, f"a={path}")
    with pytest.raises(ConfigError, match="a name may hold no #"):
        load(f"a#b={path}")


def test_the_sample_is_always_the_same_and_looks_like_the_real_thing() -> None:
    problems = sample()
    assert problems == sample()
    assert len({str(problem.prompt) for problem in problems}) == len(problems) == 12
    assert all(0 <= int(str(problem.label)) <= 999 for problem in problems)
    code = "from apps.evaluators.aime.problems import sample; print([p.label for p in sample()])"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == str([problem.label for problem in problems])


def test_labels_of_the_sample_are_right() -> None:
    """Counted again in another way, for one problem of each kind."""
    for problem in sample():
        numbers = [
            int(word)
            for word in "".join(
                char if char.isdigit() else " " for char in str(problem.prompt)
            ).split()
        ]
        label = int(str(problem.label))
        if "remainder when" in str(problem.prompt):
            base, exponent, modulus = numbers
            left = 1
            for _ in range(exponent):
                left = left * base % modulus
            assert left == label
        elif "leaves remainder" in str(problem.prompt):
            for rest, modulus in zip(numbers[::2], numbers[1::2], strict=True):
                assert label % modulus == rest
            assert 0 < label <= 7 * 9 * 11
        elif "path" in str(problem.prompt):
            right, up, x, y = numbers[2], numbers[3], numbers[-2], numbers[-1]
            assert label == _paths(right, up, (x, y))
        else:
            most, first, second, third = numbers
            assert label == len(
                (set(range(first, most + 1, first)) | set(range(second, most + 1, second)))
                - set(range(third, most + 1, third))
            )


def _paths(right: int, up: int, hole: tuple[int, int]) -> int:
    ways = {(0, 0): 1}
    for x in range(right + 1):
        for y in range(up + 1):
            if (x, y) != (0, 0):
                ways[x, y] = ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)
            if (x, y) == hole:
                ways[x, y] = 0
    return ways[right, up]
