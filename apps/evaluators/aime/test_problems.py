"""Data files: what is read, and the one error for what is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from turnwise.config import ConfigError

from apps.evaluators.aime.problems import Problem, load_data, sample


def load(*names: object, input_key: str = "prompt", label_key: str = "label") -> list[Problem]:
    return load_data([str(name) for name in names], input_key=input_key, label_key=label_key)


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
    assert load(path) == [
        Problem("aime-2024", 1, "Find $x$.", "204"),
        Problem("aime-2024", 2, "One\u2028two?", "25"),
    ]
    assert load(f"old={path}")[0].id == "old/1"


def test_other_names_of_the_keys_are_options(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"problem": "Find $x$.", "answer": "7"})
    assert load(path, input_key="problem", label_key="answer")[0].label == "7"


def test_a_problem_is_known_by_question_and_label_wherever_it_stands() -> None:
    one, same = Problem("a", 1, "Find $x$.", "7"), Problem("b", 9, "Find $x$. ", " 7")
    assert one.digest == same.digest
    assert one.digest != Problem("a", 1, "Find $x$.", "8").digest


ROW = {"prompt": "q", "label": "1"}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "holds no problem"),
        (["{"], "a.jsonl:1: not valid JSON"),
        ([ROW, "[]"], r"a.jsonl:2: expected a JSON object, found \[\]"),
        ([{"question": "q", "label": "1"}], "no 'prompt'; found label, question. --input-key"),
        ([{"prompt": "q", "answer": "1"}], "no 'label'; found answer, prompt. --label-key"),
        ([{"prompt": " ", "label": "1"}], "a.jsonl:1: prompt: expected a question"),
        ([{"prompt": 3, "label": "1"}], "a.jsonl:1: prompt: expected a question, found 3"),
        ([{"prompt": "q", "label": True}], "label: expected a text or a number, found True"),
        ([{"prompt": "q", "label": ""}], "label: is empty"),
        ([{"prompt": [{"role": "system", "content": "q"}], "label": 1}], "one message of the user"),
        ([ROW, {"prompt": "r", "label": 2}, ROW], "a.jsonl:3: the question of line 1 again"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, rows: list[object], words: str) -> None:
    path = write(tmp_path / "a.jsonl", *rows) if rows else tmp_path / "a.jsonl"
    path.touch()
    with pytest.raises(ConfigError, match=words):
        load(path)


@pytest.mark.parametrize("again", ["q", " q\n"])
def test_a_question_of_two_data_sets_would_count_twice(tmp_path: Path, again: str) -> None:
    first = write(tmp_path / "a.jsonl", {"prompt": "p", "label": "1"}, ROW)
    second = write(tmp_path / "b.jsonl", {"prompt": again, "label": "1"})
    with pytest.raises(ConfigError, match=r"b/1 is the question of a/2 again"):
        load(first, second)


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere.jsonl: No such file"):
        load(tmp_path / "nowhere.jsonl")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 4"):
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
    assert len({problem.question for problem in problems}) == len(problems) == 12
    assert all(0 <= int(problem.label) <= 999 for problem in problems)
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
                char if char.isdigit() else " " for char in problem.question
            ).split()
        ]
        label = int(problem.label)
        if "remainder when" in problem.question:
            base, exponent, modulus = numbers
            left = 1
            for _ in range(exponent):
                left = left * base % modulus
            assert left == label
        elif "leaves remainder" in problem.question:
            for rest, modulus in zip(numbers[::2], numbers[1::2], strict=True):
                assert label % modulus == rest
            assert 0 < label <= 7 * 9 * 11
        elif "path" in problem.question:
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
