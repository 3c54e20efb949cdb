"""A job on a Ray cluster, through the Ray Jobs API. The only importer of ray."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import urllib.parse
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TextIO

from turnwise.command import PreflightError, RunError, StopRun
from turnwise.launch.follow import Follower
from turnwise.launch.head import answers, bearer
from turnwise.printable import tell

OVER = ("SUCCEEDED", "FAILED", "STOPPED")
CONNECT_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 60.0
# A head that has just come up refuses jobs until its agent is there.
SUBMIT_TIMEOUT_S = 60.0
# How long a cluster may be out of reach before the run counts as lost to us.
LOST_AFTER_S = 300.0
# How often the rows of a job are looked at.
LOOK_S = 5.0
METADATA = "turnwise_run"


def connect(address: str, token: str | None = None) -> Any:
    """A client of the Jobs API.

    Args:
        token: Of a head of our own; for another cluster Ray finds the user's.

    Raises:
        PreflightError: ray is not installed here, or nobody answers.
    """
    try:
        from ray.job_submission import JobSubmissionClient  # pants: no-infer-dep
    except ImportError as error:
        mend = "run this with the Python of a node, which has it"
        # PEX compares paths by their first letters. Where a path of a .pth file begins like the
        # folder that it unpacks itself into, its own packages stay before the node's.
        if "pex.vendor" in str(error):
            mend = (
                f"a .pth file of {sys.prefix} names a path that the folder of this .pex begins"
                " with; set PEX_ROOT to another folder"
            )
        raise PreflightError(f"ray is not importable ({error}); {mend}") from None
    _past_the_proxy(address)
    # Ray's own client waits for as long as the network does.
    if not answers(address, token, CONNECT_TIMEOUT_S):
        raise PreflightError(f"no Ray cluster answers at {address}")
    try:
        return JobSubmissionClient(address, headers=bearer(token))
    except (ConnectionError, RuntimeError, OSError) as error:
        raise PreflightError(f"{address} is no Jobs API of Ray: {_one_line(error)}") from None


def _past_the_proxy(address: str) -> None:
    """Keeps Ray's client from asking a web proxy of the environment for the cluster."""
    host = urllib.parse.urlsplit(address).hostname or ""
    for name in ("no_proxy", "NO_PROXY"):
        hosts = [one for one in os.environ.get(name, "").split(",") if one]
        if host not in hosts:
            os.environ[name] = ",".join([*hosts, host])


def submit(
    address: str,
    *,
    token: str | None,
    job: str,
    entrypoint: str,
    environment: dict[str, str],
    bundle: Path,
    run: str,
) -> None:
    """Submits a job whose working folder is the unpacked bundle.

    Args:
        address: Of the Jobs API.
        token: See `connect`.
        job: The job's id, new to the cluster.
        entrypoint: Shell command.
        environment: Environment variables of the job and its workers.
        bundle: The archive with our code.
        run: Name of the run, kept with the job.

    Raises:
        RunError: the cluster did not take it.
    """
    client = connect(address, token)
    until = time.monotonic() + SUBMIT_TIMEOUT_S
    while True:
        try:
            client.submit_job(
                entrypoint=entrypoint,
                submission_id=job,
                runtime_env={"working_dir": str(bundle), "env_vars": environment},
                metadata={METADATA: run},
            )
            return
        except (RuntimeError, ConnectionError, OSError) as error:
            if status(address, job, token) is not None:
                return
            if time.monotonic() > until:
                raise RunError(f"{address} did not take the job: {_one_line(error)}") from None
        time.sleep(1.0)


def status(address: str, job: str, token: str | None = None) -> str | None:
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED; None if the cluster does not know the job.

    Raises:
        PreflightError: nobody answers.
    """
    client = connect(address, token)
    try:
        return str(client.get_job_status(job).value)
    except RuntimeError:
        return None


def message(address: str, job: str, token: str | None = None) -> str:
    """What Ray says about the job's state, or ""; the log that it adds is in the run folder."""
    try:
        said = connect(address, token).get_job_info(job).message or ""
        return _one_line(said.partition(", last available logs")[0])
    except (RuntimeError, PreflightError):
        return ""


def stop(
    address: str, job: str, token: str | None = None, timeout_s: float = STOP_TIMEOUT_S
) -> str | None:
    """Stops a job and waits until it is over; its last state.

    Raises:
        RunError: it is not over after `timeout_s`.
    """
    client = connect(address, token)
    with contextlib.suppress(RuntimeError):
        client.stop_job(job)
    until = time.monotonic() + timeout_s
    while (state := status(address, job, token)) not in (*OVER, None):
        if time.monotonic() > until:
            raise RunError(f"job {job} is still {state} {timeout_s:.0f} s after it was told to end")
        time.sleep(0.2)
    return state


def follow(
    address: str,
    job: str,
    token: str | None,
    follower: Follower,
    head_lives: Callable[[], bool],
    look: Callable[[], None],
    out: TextIO,
) -> str:
    """Shows and keeps the job's log until it is over; its last state.

    Ctrl-C (or SIGTERM) stops the job, waits until it is over and raises KeyboardInterrupt.

    Args:
        address: Of the Jobs API.
        job: The job's id.
        token: See `connect`.
        follower: Takes the log; the caller closes it.
        head_lives: False once a head of our own is gone, so that nobody waits for it.
        look: Raises StopRun if the run goes wrong; called every `LOOK_S`.
        out: Where is said that the job is being stopped.

    Raises:
        KeyboardInterrupt: the job was stopped because a person asked.
        StopRun: the job was stopped because it went wrong.
        RunError: the head is gone, or the cluster was out of reach for `LOST_AFTER_S`.
    """
    return _interruptible(
        lambda: _watched(_follow(address, job, token, follower, head_lives), look),
        lambda: stop(address, job, token),
        out,
    )


def fetch_log(address: str, job: str, run_dir: Path, token: str | None = None) -> None:
    """Brings the run folder's log and metrics up to date; nothing if the cluster has no log."""
    try:
        text = str(connect(address, token).get_job_logs(job))
    except (RuntimeError, PreflightError):
        return
    follower = Follower(run_dir, job, None)
    follower.feed(text)
    follower.close()


async def _watched(work: Coroutine[Any, Any, str], look: Callable[[], None]) -> str:
    """`work`, until `look` raises."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=LOOK_S))[0]:
            await asyncio.to_thread(look)
        return task.result()
    finally:
        task.cancel()


async def _follow(
    address: str,
    job: str,
    token: str | None,
    follower: Follower,
    head_lives: Callable[[], bool],
) -> str:
    reached = time.monotonic()
    while True:
        broken = "no answer"
        try:
            client = await asyncio.to_thread(connect, address, token)
            reached = time.monotonic()
            async for piece in client.tail_job_logs(job):
                follower.feed(piece)
                reached = time.monotonic()
        except Exception as error:
            # Whatever breaks the stream, the job goes on: ask for its state, then follow again.
            broken = _one_line(error)
        with contextlib.suppress(PreflightError):
            state = await asyncio.to_thread(status, address, job, token)
            reached = time.monotonic()
            if state in OVER:
                return str(state)
            if state is None:
                raise RunError(f"the cluster at {address} does not know job {job}")
        if not head_lives():
            raise RunError("the run's Ray head is gone; see logs/ray_head.log and logs/ray")
        if time.monotonic() - reached > LOST_AFTER_S:
            raise RunError(
                f"the cluster at {address} was out of reach for {LOST_AFTER_S:.0f} s: {broken}"
            )
        follower.restart()
        await asyncio.sleep(1.0)


def _interruptible(
    work: Callable[[], Coroutine[Any, Any, str]], end: Callable[[], object], out: TextIO
) -> str:
    """Runs `work`; the first SIGINT or SIGTERM, or StopRun, cancels it and runs `end`."""

    async def main() -> str | None:
        task = asyncio.ensure_future(work())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            return None
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    try:
        state = asyncio.run(main())
    except StopRun as cause:
        tell(f"\nstopping the job: {cause}", out)
        end()
        raise
    if state is None:
        tell("\nstopping the job ...", out)
        end()
        raise KeyboardInterrupt
    return state


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:500]
