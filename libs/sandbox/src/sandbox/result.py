"""What running a snippet can come to: a closed set, of which only the last is infrastructure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Tier = Literal["namespaces", "landlock", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Common to all results.

    Attributes:
        out: What was written to standard output, decoded from UTF-8 with replacement.
        err: The same of standard error; a traceback shows the snippet's own frames only.
        seconds: Time on the clock from the start of the snippet's code; waiting for a free place
            or for a processor and confinement are not counted.
        tier: The isolation that was in force.
    """

    out: str
    err: str
    seconds: float
    tier: Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran(_Outcome):
    """The snippet ended by itself.

    Attributes:
        code: Its exit code; minus the number of the signal where one ended it.
    """

    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut(_Outcome):
    """The time was used up: that on the clock, less waiting for a processor, or that of processors.

    Attributes:
        limit_s: The limit, `SandboxConfig.wall_s`.
    """

    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory(_Outcome):
    """An allocation beyond the limit failed uncaught.

    A kernel that runs out of memory while the snippet keeps its limit is a broken sandbox.

    Attributes:
        limit_mb: MiB of address space that it could take beyond the interpreter's own.
    """

    limit_mb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTruncated(_Outcome):
    """A stream went beyond its limit, up to which it is kept; the snippet was ended.

    Attributes:
        limit_kb: KiB that each of the two streams could take.
    """

    limit_kb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied(_Outcome):
    """The snippet ended, or was ended, over something the sandbox refuses.

    Attributes:
        what: The uncaught error or the exceeded limit, in words.
    """

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxBroken(_Outcome):
    """The sandbox itself failed; nothing follows about the snippet, which may not have run.

    Attributes:
        what: What failed, in words.
    """

    what: str


Result: TypeAlias = Ran | TimedOut | OutOfMemory | OutputTruncated | Denied | SandboxBroken
