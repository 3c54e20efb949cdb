"""Errors of writing, whichever library met them.

Files of a run are written by Python, safetensors, tokenizers and torch, and each reports a full or
read-only disk in a type of its own. Here they become one error with the place and the reason.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from turnwise.command import PreflightError, RunError
from turnwise.config import ConfigError

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM})
"""What is wrong with the disk, and not with the path that was asked for."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names `path` where the block can't write, in a run that has begun.

    Raises:
        RunError: for what Python, safetensors, tokenizers (a bare Exception) and torch (a
            RuntimeError) raise then.
    """
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        if not isinstance(error, OSError | SafetensorError | RuntimeError) and (
            type(error) is not Exception
        ):
            raise
        raise RunError(f"{path}: can't be written: {reason(error)}") from error


@contextmanager
def making(flag: str, path: Path | None = None) -> Iterator[None]:
    """Names the option where the block can't make or open a run's folder, `path` where the system
    says no other.

    Raises:
        PreflightError: the disk is full, broken or read-only.
        ConfigError: the path can't be one.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        place = getattr(error, "filename", None)
        place = path if place is None else place
        where = f"{flag} {place}" if place is not None else flag
        refusal: type[Exception] = ConfigError
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            refusal = PreflightError
        raise refusal(f"{where}: {reason(error)}") from None


def reason(error: BaseException) -> str:
    """What went wrong, on one line, without the file: that is said beside it."""
    # torch speaks of positions in its archive; what the system said is behind it.
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.strerror:
            return behind.strerror
        behind = behind.__cause__ or behind.__context__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Names `path` where the block can't read it.

    Raises:
        ConfigError: it is missing, a folder, forbidden, or the disk fails.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {reason(error)}") from None
