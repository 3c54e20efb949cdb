"""Limits and isolation of a sandbox, as configuration."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Isolation = Literal["auto", "namespaces", "landlock", "none"]


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class SandboxConfig(BaseModel):
    """How snippets run, and what each of them may use; a section of a larger configuration too."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    isolation: Isolation = "auto"
    """The walls: `auto` takes the strongest that holds here and refuses where none does; `none`
    runs snippets as this very user, with limits but without walls."""

    wall_s: float = Field(default=10.0, gt=0, le=3600)
    """Seconds from the start of the snippet's code, less those in which it waited for a processor:
    a busy machine fails no snippet. One that waits for more than a minute is no snippet's doing."""

    memory_mb: int = Field(default=1024, ge=16)
    """MiB of address space beyond what the interpreter with its packages takes."""

    disk_mb: int = Field(default=64, ge=1)
    """MiB that all files in the working folder may take together."""

    file_mb: int = Field(default=16, ge=1)
    """MiB of the largest single file."""

    output_kb: int = Field(default=64, ge=1, le=16384)
    """KiB of standard output, and of standard error, that are kept; more ends the snippet."""

    packages: tuple[str, ...] = ("numpy", "sympy")
    """Packages that snippets can import, loaded beforehand; what they import comes along."""

    concurrency: int = Field(default_factory=_processors, ge=1, le=1024)
    """Snippets that run at the same time; the others wait, which counts against no limit."""

    recycle_after: int = Field(default=1000, ge=1)
    """Snippets after which the waiting interpreter is replaced by a fresh one."""
