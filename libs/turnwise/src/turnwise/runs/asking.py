"""Puts a request to a run under way and waits for the answer."""

from __future__ import annotations

import io
import time
from pathlib import Path

from turnwise.command import PreflightError, RunError
from turnwise.config import ConfigError
from turnwise.run.control import (
    Backend,
    Outcome,
    Request,
    ask,
    check_request,
    read_history,
    record_outcome,
)
from turnwise.run.folder import RunFolder
from turnwise.run.status import is_alive, read_status
from turnwise.view.state import run_state

LAUNCH = "launch.json"
"""The launcher's record: who has it is a run on the cluster (`turnwise.launch.record`)."""
ANSWER_S = 30.0
"""Seconds to wait for an answer; a run looks every two."""
LOOK_S = 0.2


def backend_of(run_dir: Path) -> Backend:
    """Where a run is played."""
    return "slime" if (run_dir / LAUNCH).is_file() else "local"


def send(run_dir: Path, request: Request) -> None:
    """Leaves a request for a run that can take it.

    Raises:
        ConfigError: nobody would take it, or such a run never does that: says why.
        RunError: it can't be written.
    """
    folder = RunFolder.open(run_dir)
    backend = backend_of(run_dir)
    check_request(request, backend, folder.read_config() if backend == "local" else None)
    state = run_state(folder, 0.0)
    if state == "finished":
        raise ConfigError(f"{run_dir}: the run has finished; nothing can be asked of it")
    later = request.command in ("set", "drop") and backend_of(run_dir) == "local"
    status = read_status(run_dir)
    if status is not None and status.backend == "evaluation":
        raise ConfigError(f"{run_dir}: an evaluation takes no requests; Ctrl-C and --resume do")
    if status is None and not later:
        raise ConfigError(
            f"{run_dir}: it writes no status.json: it has not begun, or is of a version that takes"
            " no requests"
        )
    if not later and status is not None and (state == "stopped" or not is_alive(status)):
        raise ConfigError(
            f"{run_dir}: {status.process} has ended or does not write; go on with --resume"
            " --run-dir, then ask again"
        )
    ask(run_dir, request)


def wait_for_answer(run_dir: Path, request: Request, seconds: float = ANSWER_S) -> Outcome:
    """The run's first answer; `noted` is one.

    Raises:
        PreflightError: none came in time; the request stays.
    """
    until = time.monotonic() + seconds
    while True:
        if (found := answer_to(run_dir, request.id)) is not None:
            return found
        if time.monotonic() > until:
            raise PreflightError(
                f"{run_dir}: no answer after {seconds:.0f} s; the request stays and is taken when"
                " the run looks: see status and history.jsonl"
            )
        time.sleep(LOOK_S)


def answer_to(run_dir: Path, request: str) -> Outcome | None:
    """The run's last answer to a request; None before its first."""
    found = [one for one in read_history(run_dir) if one.request == request]
    return found[-1] if found else None


def stop_job(run_dir: Path, request: Request) -> str:
    """Ends the job of a run on the cluster; its last checkpoint is what is left.

    Raises:
        ConfigError, RunError: see `turnwise.launch.start.stop`.
    """
    from turnwise.launch.start import stop

    out = io.StringIO()
    try:
        stop(run_dir.absolute(), out=out)
    except (ConfigError, RunError) as error:
        record_outcome(run_dir, request, "refused", str(error))
        raise
    said = " ".join(out.getvalue().split())
    record_outcome(run_dir, request, "done", said)
    return said
