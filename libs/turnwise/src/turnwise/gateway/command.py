"""An agent that is a command: a process group of its own, a workspace, and no secrets of ours."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.episode import Boundary, BoundaryError

MAX_OUTPUT_BYTES = 4 * 2**20
TERM_GRACE_S = 2.0
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLimits:
    """What each process of a command may take; None sets no bound.

    Attributes:
        memory_mb: MiB of data, its heap and what it maps for itself alone.
        cpu_s: Seconds of processor time.
    """

    memory_mb: int | None = None
    cpu_s: int | None = None

    def around(self, command: Sequence[str]) -> Sequence[str]:
        """The command as a shell begins it within these limits, which it can't raise again."""
        told = []
        if self.memory_mb is not None:
            told.append(f"ulimit -d {self.memory_mb * 1024}")
        if self.cpu_s is not None:
            # A second between the signal that says what happened and the one that can't be ignored.
            told.append(f"ulimit -S -t {self.cpu_s} && ulimit -H -t {self.cpu_s + 1}")
        if not told:
            return command
        return ["/bin/sh", "-c", " && ".join((*told, 'exec "$@"')), "sh", *command]


_NO_LIMITS = CommandLimits()


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command left behind that ended by itself with status 0.

    Attributes:
        output: What it wrote to standard output and error, the first 4 MiB, as text.
        workspace: Its folder, which is removed once the reward is known.
    """

    output: str
    workspace: Path


def client_environment(base_url: str, workspace: Path) -> dict[str, str]:
    """What a command's environment holds: where the policy is, by the names that the clients'
    libraries read, a home of its own, and a few variables of ours that are no secrets.

    Args:
        base_url: Of the rollout, without `/v1`.
        workspace: The folder that the command runs in, and its home.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {
        **kept,
        "HOME": str(workspace),
        "TMPDIR": str(workspace),
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "OPENAI_API_KEY": "turnwise",
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": "turnwise",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Claude Code's tools would become more from turn to turn, by references that no chat
        # template knows.
        "ENABLE_TOOL_SEARCH": "false",
        "NO_PROXY": "*",
    }


async def run_command(
    command: Sequence[str],
    workspace: Path,
    environment: Mapping[str, str],
    limits: CommandLimits = _NO_LIMITS,
) -> CommandResult:
    """Runs a command to its end. Cancelled, it ends with everything that it started.

    Raises:
        BoundaryError: at `harness`: it does not start, or ends with another status than 0.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *limits.around(command),
            cwd=workspace,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise BoundaryError(
            Boundary.HARNESS, f"{command[0]}: does not start: {error.strerror or error}"
        ) from error
    try:
        output = await _read(process)
        status = await process.wait()
    finally:
        await _end(process)
    if status != 0:
        how = f"status {status}" if status > 0 else f"signal {signal.Signals(-status).name}"
        tail = output[-2000:].strip()
        raise BoundaryError(Boundary.HARNESS, f"{command[0]}: ended with {how}: {tail}")
    return CommandResult(output, workspace)


async def _read(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    kept = bytearray()
    while chunk := await process.stdout.read(65536):
        kept += chunk[: MAX_OUTPUT_BYTES - len(kept)]
    return kept.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends what is left of the process group: asked first, then made to."""
    if _signal(process.pid, signal.SIGTERM):
        try:
            async with asyncio.timeout(TERM_GRACE_S):
                await process.wait()
                while _signal(process.pid, 0):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pass
        _signal(process.pid, signal.SIGKILL)
    await process.wait()


def _signal(group: int, number: int) -> bool:
    """Whether the group was there to be told."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
