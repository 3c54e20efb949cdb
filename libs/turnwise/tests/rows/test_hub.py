"""Data sets of the hub are found by name; a file is never looked for there."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from turnwise.config import ConfigError
from turnwise.rows.files import records
from turnwise.rows.hub import locate


def test_a_missing_file_is_named_and_not_looked_for_on_the_hub() -> None:
    with pytest.raises(ConfigError, match=r"absent/data\.jsonl: No such file"):
        list(records(locate("absent/data.jsonl")))
    assert locate("absent/data.json", (".json",)) == Path("absent/data.json")


def test_a_data_set_on_the_hub_without_its_package_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match="needs the package huggingface_hub; download it"):
        locate("owner/name")


class Hub(types.ModuleType):
    """A hub with one data set of given files."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        super().__init__("huggingface_hub")
        self.folder, self.files = folder, files

    def list_repo_files(self, repository: str, *, repo_type: str) -> list[str]:
        if repository != "owner/name":
            raise OSError("401 no such data set")
        return ["README.md", *self.files]

    def hf_hub_download(self, repository: str, name: str, *, repo_type: str) -> str:
        return str(self.folder / name)


def test_a_data_set_on_the_hub_is_found_by_its_one_file_or_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path, ["data/train.parquet"])
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert locate("owner/name") == tmp_path / "data/train.parquet"
    hub.files.append("more.jsonl")
    with pytest.raises(ConfigError, match=r"has 2 .*name one, owner/name:FILE"):
        locate("owner/name")
    assert locate("owner/name:more.jsonl") == tmp_path / "more.jsonl"
    with pytest.raises(ConfigError, match="the hub says: 401 no such data set"):
        locate("owner/other")
