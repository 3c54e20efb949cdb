"""What the run folder says is ours: the job, and the head if the run started one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from turnwise.config import Config, ConfigError
from turnwise.launch.processes import Process, is_alive

NAME = "launch.json"
Url = Annotated[str, Field(pattern="^https?://")]


class Head(Config):
    """A Ray head of our own."""

    process: Process
    """The process that leads its session and process group."""
    address: Url
    """Address of its Jobs API."""
    join: str
    """HOST:PORT that other nodes join."""
    temp_dir: str = Field(pattern="^/.")
    """Our folder for its sessions and its token."""


class LaunchRecord(Config):
    """What a run has started, kept in `launch.json` of its folder."""

    schema_version: Literal[1] = 1
    """Version of this file."""
    address: Url
    """Address of the Jobs API that the job was submitted to."""
    job: str | None = None
    """The job's id there; None until it was submitted."""
    head: Head | None = None
    """The head, if it is our own."""
    host: str = ""
    """The machine that the run was started from."""
    ended: str | None = None
    """Ray's last word on the job, once it is over and seen: SUCCEEDED, FAILED or STOPPED."""


def hostname() -> str:
    """This machine's name."""
    return socket.gethostname()


def read_record(run_dir: Path) -> LaunchRecord | None:
    """The record of a run folder, or None if it has none.

    Raises:
        ConfigError: the file is not readable as a record.
    """
    path = run_dir / NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    try:
        return LaunchRecord.model_validate_json(content)
    except ValueError as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"{path}: is no record of a launch: {said}") from None


def write_record(run_dir: Path, record: LaunchRecord) -> None:
    """Writes the record whole or not at all."""
    path = run_dir / NAME
    part = path.with_name(f"{NAME}.part")
    with part.open("w", encoding="utf-8") as stream:
        stream.write(record.model_dump_json(indent=1) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def records(runs: Path) -> Iterator[tuple[Path, LaunchRecord]]:
    """Run folders under `runs` that have a readable record."""
    for path in sorted(runs.glob(f"*/{NAME}")):
        try:
            record = read_record(path.parent)
        except ConfigError:
            continue
        if record is not None:
            yield path.parent, record


def head_is_alive(record: LaunchRecord) -> bool:
    """Whether the run's own head still runs on this machine."""
    return record.head is not None and is_alive(record.head.process)
