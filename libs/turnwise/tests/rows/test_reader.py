"""A data file is read the same everywhere, and what nobody can solve is named by its place."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.config import ConfigError
from turnwise.rows import Row
from turnwise.rows.checks import check_text
from turnwise.rows.files import split_slice
from turnwise.rows.reader import read_rows

CHAT = [{"role": "user", "content": "Q"}]


def write(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read(path: object, **keys: Any) -> list[Row]:
    keys = {"input_key": "prompt", "label_key": "label", **keys}
    return list(read_rows(str(path), **keys))


def refusal(path: object, **keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path, **keys)
    return str(caught.value)


def test_a_row_keeps_prompt_label_and_metadata_as_the_file_has_them(tmp_path: Path) -> None:
    label = {"tools": ["a"], "cost": 1.5, "none": None}
    path = write(
        tmp_path / "train.jsonl",
        {"prompt": " Q\tor\n\nu? ", "label": label, "metadata": {"id": 7, "x": {"y": [1]}}},
        "",
        {"prompt": CHAT, "label": None},
    )
    first, second = read(path)
    assert first == Row(" Q\tor\n\nu? ", label, {"id": 7, "x": {"y": [1]}}, "7", f"{path}:1")
    assert second == Row(CHAT, None, {}, "train-3", f"{path}:3")


def test_keys_mean_what_slimes_options_mean(tmp_path: Path) -> None:
    row = {"input": "Q", "answer": "1", "extra": {"a": 1}, "tools": '[{"type": "function"}]'}
    path = write(tmp_path / "a.jsonl", row)
    (found,) = read_rows(path)
    assert (found.prompt, found.label) == ("Q", None)
    assert found.metadata == {"tools": [{"type": "function"}]}
    (found,) = read_rows(path, label_key="answer", metadata_key="extra", tool_key=None)
    assert (found.label, found.metadata) == ("1", {"a": 1})


def test_parquet_and_json_lines_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [
        {"prompt": CHAT, "label": {"n": n}, "metadata": {"id": f"{n}", "deep": {"x": [n]}}}
        for n in range(3)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    found, same = read(tmp_path / "a.parquet"), read(write(tmp_path / "a.jsonl", *rows))
    assert [(row.prompt, row.label, row.metadata, row.id) for row in found] == [
        (row.prompt, row.label, row.metadata, row.id) for row in same
    ]
    assert found[2].where == f"{tmp_path / 'a.parquet'}, row 3"


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "Q", "label": 1})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [row.prompt for row in read(path)] == ["Q"]


bounds = st.none() | st.integers(-7, 7)


@given(bounds, bounds, st.booleans())
def test_a_slice_takes_the_rows_that_python_takes(
    tmp_path_factory: pytest.TempPathFactory, start: int | None, end: int | None, parquet: bool
) -> None:
    rows = [{"prompt": f"q{n}", "label": n} for n in range(5)]
    folder = tmp_path_factory.mktemp("slice")
    path = folder / ("a.parquet" if parquet else "a.jsonl")
    if parquet:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        write(path, *rows)
    words = f"{path}@[{'' if start is None else start}:{'' if end is None else end}]"
    expected = list(range(5))[start:end]
    if expected:
        assert [row.label for row in read(words)] == expected
    else:
        assert "holds no row" in refusal(words)


def test_rows_outside_of_a_slice_may_be_broken(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "{", {"prompt": "Q", "label": 1}, "{")
    assert [row.where for row in read(f"{path}@[1:2]")] == [f"{path}:2"]
    assert split_slice("odd@[x:y].jsonl") == (Path("odd@[x:y].jsonl"), slice(None))


@pytest.mark.parametrize(
    ("row", "field", "found", "remedy"),
    [
        ("{", "", "not valid JSON", "one JSON object on one line"),
        ("[1]", "", "found '[1]'", '{"prompt": ..., "label": ...}'),
        ({"problem": "Q", "label": 1}, "", "no 'prompt'; found label, pro", "--input-key problem"),
        ({"prompt": "Q", "answer": 1}, "", "no 'label'; found answer", "--label-key answer"),
        ({"prompt": " ", "label": 1}, "prompt", "is empty", "needs something to ask"),
        ({"prompt": None, "label": 1}, "prompt", "found None", "--input-key"),
        ({"prompt": [], "label": 1}, "prompt", "found []", "--input-key"),
        ({"prompt": json.dumps(CHAT), "label": 1}, "prompt", "JSON string", "json.loads(row"),
        ({"prompt": json.dumps(CHAT[0]), "label": 1}, "prompt", "JSON string", "json.loads(row"),
        ({"prompt": [{"content": "Q"}], "label": 1}, "prompt[0]", "found {", '"role": "user"'),
        ({"prompt": ["Q"], "label": 1}, "prompt[0]", "found 'Q'", '"role": "user"'),
        ({"prompt": [{"role": "user"}], "label": 1}, "prompt[0]", "has no content", ""),
        ({"prompt": [*CHAT, {"role": "user", "content": 3}], "label": 1}, "prompt[1].content",
         "found 3", "a text or a list of parts"),
        ('{"prompt": "$\\frac12$", "label": 1}', "prompt", "'\\x0c' in '$\\x0crac12$'", "\\\\f"),
        ('{"prompt": "$\\binom21$", "label": 1}', "prompt", "'\\x08'", "is written \\\\b"),
        ('{"prompt": "2 \\times 3", "label": 1}', "prompt", "'\\t'", "is written \\\\t"),
        ('{"prompt": "\\left(2\\right)", "label": 1}', "", "not valid JSON", ""),
        ('{"prompt": "(2\\right)", "label": 1}', "prompt", "'\\r'", "is written \\\\r"),
        ('{"prompt": "$\\nabla$", "label": 1}', "prompt", "'\\n'", "is written \\\\n"),
        ('{"prompt": [{"role": "user", "content": "\\frac"}], "label": 1}', "prompt[0].content",
         "'\\x0c'", "double its backslashes"),
        ('{"prompt": "Q", "label": "\\frac72"}', "label", "'\\x0c'", "double its backslashes"),
        ('{"prompt": "Q", "label": {"a": ["\\frac72"]}}', "label.a[0]", "'\\x0c'", "double its"),
        ('{"prompt": "a \\u001b", "label": 1}', "prompt", "'\\x1b'", "remove it"),
        ('{"prompt": "a \\ud83d b", "label": 1}', "prompt", "'\\ud83d'", "write the whole char"),
        ('{"prompt": "Q", "label": "\\ud83d"}', "label", "'\\ud83d'", "write the whole char"),
        ('{"prompt": "Q", "label": 1, "metadata": {"x": "\\ud83d"}}', "metadata.x", "half of", ""),
        ('{"prompt": "Q", "label": NaN}', "label", "is nan", "leave the row out"),
        ('{"prompt": "Q", "label": -Infinity}', "label", "is -inf", "leave the row out"),
        ('{"prompt": "Q", "label": 1e400}', "label", "is inf", "a large number as text"),
        ('{"prompt": "Q", "label": [1, 1e400]}', "label[1]", "is inf", "a large number as text"),
        ({"prompt": "Q", "label": 1, "metadata": "{}"}, "metadata", "found '{}'", "the object"),
        ({"prompt": "Q", "label": 1, "metadata": [1]}, "metadata", "found [1]", "--metadata-key"),
        ({"prompt": "Q", "label": 1, "tools": "no"}, "tools", "not valid JSON", "--tool-key"),
        (f'{{"prompt": {"[" * 900}{"]" * 900}, "label": 1}}', "prompt[0]", "found [", "write {"),
        ({"prompt": "Q", "label": 1, "tools": {}}, "tools", "expected a list", "--tool-key"),
    ],
)  # fmt: skip
def test_a_refusal_names_file_line_field_and_remedy(
    tmp_path: Path, row: object, field: str, found: str, remedy: str
) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "Q", "label": 1}, row)
    said = refusal(path)
    assert said.startswith(f"{path}:2: {field}{':' if field else ''}")
    assert found in said and remedy in said


def test_a_missing_number_in_a_parquet_label_is_named_by_its_row(tmp_path: Path) -> None:
    table = pyarrow.table({"prompt": ["a", "b"], "label": [204.0, float("nan")], "n": [0, 1]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert refusal(tmp_path / "a.parquet").startswith(f"{tmp_path / 'a.parquet'}, row 2: label: is")


def test_parquet_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "needs the package pyarrow" in refusal(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"", "holds no row"),
        ("a.jsonl", b" \n\n", "holds no row"),
        ("a.jsonl", b'{"prompt": "\xe9"}', "a.jsonl:1: not UTF-8 at byte 12"),
        ("a.jsonl", '{"prompt": 1}'.encode("utf-16"), "iconv -f UTF-16"),
        ("a.tsv", b"prompt\n", "holds no row"),
        ("a.tsv", b"prompt\tlabel\nx\n", "a.tsv:2: has 1 columns, the first line names 2"),
        ("a.tsv", b"prompt\nx\n\xe9\n", "not UTF-8"),
        ("a.tsv", b'prompt\n"x" y\n', "a.tsv:2: no text with tabs"),
        ("a.tsv", b"prompt\tprompt\nx\ty\n", "a.tsv:1: names the column 'prompt' twice"),
        ("a.csv", b"prompt,label", "pandas.read_csv("),
        ("a.json", b"[]", "pandas.read_json("),
        ("a.jsonl.gz", b"", "gunzip"),
        ("a", b"", "found 'no ending'"),
        ("a.parquet", b"PAR1 and more", "no readable parquet"),
    ],
)
def test_a_file_of_another_kind_says_how_to_convert_it(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    said = refusal(tmp_path / name)
    assert said.startswith(str(tmp_path / name)) and words in said


def test_a_folder_and_a_file_that_is_not_there_are_named(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "b.jsonl")
    assert "No such file" in refusal("a\0.jsonl")


@given(st.text(alphabet=st.characters(exclude_categories=("Cs", "Cc"))))
def test_text_without_control_characters_and_half_characters_passes(text: str) -> None:
    check_text(text, "here", "prompt")
    check_text(f"{text}\n\tfor external in range(3):\n\t\tan = 1\r\n{text}", "here", "prompt")


REPORTED = {
    "bs.jsonl": ({}, "bs.jsonl:1: prompt: holds the control character"),
    "gsm8k-train.jsonl": ({"input_key": "question", "label_key": "answer"}, None),
    "hugefloat.jsonl": ({}, "hugefloat.jsonl:1: label: is inf"),
    "lead.jsonl": ({"input_key": "problem", "label_key": "answer"}, None),
    "nan.jsonl": ({"input_key": "problem", "label_key": "answer"}, "nan.jsonl:2: answer: is nan"),
    "nan.parquet": (
        {"input_key": "problem", "label_key": "answer"},
        "nan.parquet, row 2: answer: is nan",
    ),
    "ok1.jsonl": ({}, None),
    "promptjson.jsonl": ({}, "promptjson.jsonl:1: prompt: is a chat written as a JSON string"),
    "skywork-or1.jsonl": ({"label_key": "reward_model"}, None),
    "slime-dapo.jsonl": ({}, None),
    "surr.jsonl": ({}, "surr.jsonl:1: prompt: holds '\\ud83d', half of a character"),
}


@pytest.mark.skipif(
    "TURNWISE_SHARED_DATA" not in os.environ, reason="needs the folder of public reports"
)
@pytest.mark.parametrize("name", REPORTED)
def test_files_of_public_reports_are_read_or_refused(name: str) -> None:
    keys, words = REPORTED[name]
    path = Path(os.environ["TURNWISE_SHARED_DATA"], "public_files_2", name)
    if words is None:
        assert read(path, **keys)
    else:
        assert words in refusal(path, **keys)
