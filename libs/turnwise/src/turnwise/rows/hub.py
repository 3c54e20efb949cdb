"""Data sets by their names on the Hugging Face hub."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

from turnwise.config import ConfigError

_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+?)(?::(.+))?")


def locate(source: str, kinds: Sequence[str] = (".jsonl", ".parquet")) -> Path:
    """The file of a source; one on the hub is downloaded into the hub's own cache.

    Args:
        source: A file, or OWNER/NAME or OWNER/NAME:FILE on the hub.
        kinds: Endings of the files that count as data.

    Raises:
        ConfigError: there is no such file, or the hub can't be asked or has several.
    """
    path = Path(source)
    named = _HUB_NAME.fullmatch(source)
    if path.exists() or path.suffix in kinds and ":" not in source or not named:
        return path
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(
            f"{source}: no such file, and a data set on the hub needs the package huggingface_hub; "
            "download it and give the file"
        ) from None
    repository, inside = named[1], named[2]
    try:
        if inside is None:
            listed = hub.list_repo_files(repository, repo_type="dataset")
            files = [name for name in listed if name.endswith(tuple(kinds))]
            if len(files) != 1:
                there = ", ".join(sorted(files)[:8]) or "none"
                raise ConfigError(
                    f"{source}: has {len(files)} {' and '.join(kinds)} files ({there}); name one, "
                    f"{repository}:FILE"
                )
            inside = files[0]
        return Path(hub.hf_hub_download(repository, inside, repo_type="dataset"))
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, ConfigError):
            raise
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(f"{source}: no such file, and the hub says: {said}") from None
