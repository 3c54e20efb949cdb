"""A disk that takes no more is one error, whichever library met it."""

from __future__ import annotations

import errno
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from turnwise.command import PreflightError, RunError
from turnwise.config import ConfigError
from turnwise.run.disk import making, reading, writing
from turnwise.run.folder import RunFolder, require_space, write_whole

TENSOR = {"a": torch.zeros(5000)}


@pytest.fixture
def full_at_1000_bytes() -> Iterator[None]:
    """No file grows beyond 1000 bytes: a real error of the system, from every library."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def by_torch(path: Path) -> None:
    with path.open("wb") as stream:
        torch.save(TENSOR, stream)


def by_tokenizers(path: Path) -> None:
    vocabulary = {f"a long token, number {number}": number for number in range(500)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="x")).save(str(path))


def by_python(path: Path) -> None:
    path.write_text("a" * 5000)


@pytest.mark.parametrize(
    "write", [by_torch, by_tokenizers, by_python, lambda path: save_file(TENSOR, path)]
)
def test_what_a_library_says_of_a_full_disk_is_one_error(
    write: Callable[[Path], None], tmp_path: Path, full_at_1000_bytes: None
) -> None:
    with (
        pytest.raises(RunError, match=r"step_3: can't be written: .*File too large"),
        writing(tmp_path / "step_3"),
    ):
        write(tmp_path / "file")


def test_a_bug_is_no_full_disk(tmp_path: Path) -> None:
    with pytest.raises(KeyError), writing(tmp_path):
        raise KeyError("a bug")


def test_a_file_that_can_not_be_written_stays_as_it_was(
    tmp_path: Path, full_at_1000_bytes: None
) -> None:
    write_whole(tmp_path / "report.html", "old")
    with pytest.raises(RunError, match="report.html: can't be written: File too large"):
        write_whole(tmp_path / "report.html", "new" * 1000)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("report.html", "old")
    ]


def test_a_row_that_does_not_fit_leaves_the_rows_before_it(
    tmp_path: Path, full_at_1000_bytes: None
) -> None:
    folder = RunFolder.create(tmp_path / "run", "own", {})
    folder.append({"step": 1, "kind": "train"})
    with pytest.raises(RunError, match="metrics.jsonl: can't be written"):
        folder.append({"step": 2, "kind": "train", "text": "a" * 2000})
    assert [row["step"] for row in folder.metric_rows()] == [1]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, PreflightError),
        (errno.EROFS, PreflightError),
        (errno.EACCES, ConfigError),
        (errno.ENOTDIR, ConfigError),
    ],
)
def test_before_the_run_the_disk_fails_the_preflight_and_the_path_is_a_usage_error(
    number: int, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="--run-dir /x: "), making("--run-dir"):
        raise OSError(number, "as it is", "/x")
    with pytest.raises(kind) as caught, making("--run-dir"):
        raise OSError(number, "as it is")
    assert "None" not in str(caught.value)


def test_a_folder_where_a_file_is_meant_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: Is a directory"), reading(tmp_path):
        tmp_path.read_bytes()


@pytest.mark.parametrize(
    ("needed", "said"), [(46_000_001, "46.1 MB needed"), (900, "900 bytes needed")]
)
def test_what_is_missing_is_said_in_a_unit_with_digits(
    needed: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("usage", (), {"free": 17}))
    with pytest.raises(PreflightError, match=f"{said} for a checkpoint, 17 bytes free"):
        require_space(tmp_path, needed, "a checkpoint")
