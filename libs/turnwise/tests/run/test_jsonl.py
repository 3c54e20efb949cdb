"""Rows survive a crash, any text a model writes, and a disk that fills up."""

import errno
import json
import math
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.command import RunError
from turnwise.config import ConfigError
from turnwise.run.jsonl import append_row, dump, keep_until, plain, read_rows, torn_tail


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"step": 1, "text": "line\nbreak"}, {"step": 2, "text": "größer  "}]
    for row in rows:
        append_row(path, row)
    assert list(read_rows(path)) == rows
    assert path.read_bytes().count(b"\n") == 2


def test_a_row_is_on_its_way_to_disk_when_append_returns(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, {"step": 1})
    assert path.read_bytes() == b'{"step":1}\n'


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert list(read_rows(path)) == []
    assert torn_tail(path) == 0
    assert keep_until(path, 3) == 0
    assert not path.exists()


@pytest.mark.parametrize("torn", [b"{", b'{"step":3}', b"\x00" * 70_000, b'{"step":3,"x":"' * 9000])
def test_a_torn_last_line_is_left_out_and_cut_by_the_next_row(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":2}\n' + torn)
    assert torn_tail(path) == len(torn)
    assert [row["step"] for row in read_rows(path)] == [1, 2]
    append_row(path, {"step": 3})
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3]
    assert torn_tail(path) == 0


def test_a_file_that_is_one_torn_line_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step":')
    assert torn_tail(path) == 8
    assert list(read_rows(path)) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"step":2', "not valid JSON"),
        (b"[1]", "expected a JSON object"),
        (b"\xff\xfe", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[" * 200_000, "not valid JSON"),
    ],
)
def test_a_broken_row_is_an_error_that_names_file_and_line(
    tmp_path: Path, line: bytes, said: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step":1}\n' + line + b'\n{"step":3}\n')
    with pytest.raises(ConfigError, match=said) as caught:
        list(read_rows(path))
    assert str(caught.value).startswith(f"{path}:2: ")


def test_rows_of_later_steps_go_and_the_others_stay_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    kept = b'{"step": 1,  "x": 0.10}\n{"step":2}\n'
    path.write_bytes(kept + b'{"step":3}\n{"step":4}\n{"st')
    assert keep_until(path, 2) == 2
    assert path.read_bytes() == kept
    assert list(tmp_path.iterdir()) == [path]


def test_a_broken_row_stops_the_cut_and_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":"2"}\n')
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2: step: expected a number, found '2'"):
        keep_until(path, 1)
    assert path.read_bytes() == b'{"step":1}\n{"step":"2"}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_whole_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, {"step": 1})
    opened = Path.open

    class FullDisk:
        def __init__(self, stream: IO[Any]) -> None:
            self._stream = stream

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def __enter__(self) -> "FullDisk":
            return self

        def __exit__(self, *error: object) -> None:
            self._stream.close()

        def write(self, data: bytes) -> None:
            self._stream.write(data[:4])

        def flush(self) -> None:
            self._stream.flush()
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda self, mode: FullDisk(opened(self, mode)))
        with pytest.raises(RunError, match="No space left on device"):
            append_row(path, {"step": 2})
    assert path.read_bytes() == b'{"step":1}\n'


def test_numbers_that_json_does_not_have_become_null() -> None:
    row = {"a": math.nan, "b": [math.inf, -math.inf], "c": np.float32("nan"), "d": 1.5}
    assert dump(row) == '{"a":null,"b":[null,null],"c":null,"d":1.5}'


def test_numpy_paths_and_other_things_become_json() -> None:
    row = {
        "a": np.int64(3),
        "b": np.arange(2),
        "c": Path("runs"),
        4: np.bool_(True),
        "e": ("x",),
        "f": 10**40,
    }
    assert plain(row) == {
        "a": 3,
        "b": [0, 1],
        "c": "runs",
        "4": True,
        "e": ["x"],
        "f": 10**40,
    }


def test_arguments_nested_without_end_do_not_stop_a_run() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert "(nested too deep)" in dump({"arguments": deep})


@given(st.text(st.characters(codec=None)))
def test_any_text_makes_a_row_of_one_line(text: str) -> None:
    line = dump({"text": text})
    assert "\n" not in line
    back = json.loads(line.encode())["text"]
    surrogates = any("\ud800" <= char <= "\udfff" for char in text)
    assert back == text or surrogates
    assert len(back.encode()) >= 0


def test_lone_surrogates_alone_are_replaced() -> None:
    assert plain("a\ud800b\udc00😀") == "a\ufffdb\ufffd😀"
