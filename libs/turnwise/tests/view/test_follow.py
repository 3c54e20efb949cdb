import os
import time
from pathlib import Path

from turnwise.view.follow import GrowingFile

NEVER = float("inf")


def read(file: GrowingFile) -> list[bytes]:
    file.look()
    return [line for _, line in file.lines(NEVER)]


def test_a_torn_last_line_is_given_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"one\ntw")
    file = GrowingFile(path)
    assert read(file) == [b"one\n"] and file.complete
    assert read(file) == []
    with path.open("ab") as stream:
        stream.write(b"o\nthree\n")
    assert read(file) == [b"two\n", b"three\n"]


def test_a_file_that_comes_late_is_read(tmp_path: Path) -> None:
    file = GrowingFile(tmp_path / "rows")
    assert read(file) == [] and file.complete
    (tmp_path / "rows").write_bytes(b"one\n")
    assert read(file) == [b"one\n"]
    assert file.generation == 0


def test_a_file_that_is_replaced_or_cut_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"one\ntwo\n")
    file = GrowingFile(path)
    read(file)
    (tmp_path / "new").write_bytes(b"one\n2\nthree\n")
    os.replace(tmp_path / "new", path)
    assert read(file) == [b"one\n", b"2\n", b"three\n"]
    assert file.generation == 1
    path.write_bytes(b"one\n")
    assert read(file) == [b"one\n"]
    assert file.generation == 2


def test_other_lines_in_the_same_file_are_noticed_though_it_grew(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"one\ntwo\n")
    file = GrowingFile(path)
    read(file)
    with path.open("r+b") as stream:
        stream.write(b"1\n22222\nthree\n")
    assert read(file) == [b"1\n", b"22222\n", b"three\n"]


def test_a_deadline_that_has_passed_still_gives_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"one\ntwo\n")
    file = GrowingFile(path)
    file.look()
    past = time.monotonic() - 1
    assert [line for _, line in file.lines(past)] == [b"one\n"]
    assert not file.complete
    assert list(file.lines(past)) == [(4, b"two\n")]
