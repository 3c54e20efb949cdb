"""One command from a file to a running job, and what is asked about it later.

1. Resolve the file and the command line into a plan; refuse what cannot work.
2. Look for a run of ours that still lives; list and refuse it, or end it with `takeover`.
3. Say where training starts from, if this machine is a node of the cluster.
4. Write the run folder: config.json, plan.json, code.zip.
5. Attach to the cluster of `[ray] address`, or start a head of our own.
6. Submit, and follow the log until the job is over (or leave it with `detach`).
7. A head of our own ends with the job. Nothing is ended that `launch.json` does not name.
8. Say what the evaluations showed, and write the report.

While a job is followed its rows are watched, and one that goes wrong is ended with the cause
(`turnwise.stopping`).
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from turnwise.command import PreflightError, RunError, StopRun
from turnwise.config import ConfigError
from turnwise.launch import ray_job
from turnwise.launch.bundle import write_bundle
from turnwise.launch.engines import check_engines
from turnwise.launch.follow import Follower
from turnwise.launch.head import TOKEN, is_here, is_ours, start_head, stop_head, token_of
from turnwise.launch.plan import CUSTOM_CONFIG, Debug, Plan, custom_config_text, make_plan
from turnwise.launch.preset import RunConfig, read_run
from turnwise.launch.record import (
    NAME,
    Head,
    LaunchRecord,
    head_is_alive,
    hostname,
    read_record,
    records,
    write_record,
)
from turnwise.launch.result import make_report, tell_result
from turnwise.launch.resume import iteration, made_again, starting_point
from turnwise.launch.rules import number, whole
from turnwise.launch.watch import FolderWatch
from turnwise.method import find_method, method_name
from turnwise.printable import tell
from turnwise.run.start import Start, how_started, write_start
from turnwise.stopping import RowWatch

BUNDLE = "code.zip"


def run(
    config_path: Path,
    overrides: Sequence[str] = (),
    *,
    run_dir: Path,
    detach: bool = False,
    takeover: bool = False,
    dry_run: bool = False,
    debug: Debug | None = None,
    method: str | None = None,
    out: TextIO | None = None,
) -> int:
    """Starts the run of a file.

    Args:
        config_path: The TOML file, see `turnwise.launch.preset`.
        overrides: Words of the command line that go before it.
        run_dir: The run folder; made if it does not exist. Runs beside it are looked at.
        detach: Return when the job is submitted.
        takeover: End a run of ours that still lives instead of refusing to start.
        dry_run: Print the plan and start nothing.
        debug: `rollout` or `replay`, see `make_plan`.
        method: The only one that the command is for, see `read_run`.
        out: Where lines for people go; stdout if None.

    Returns:
        0 if the job succeeded (or was submitted, or was only planned), 4 if it did not.

    Raises:
        ConfigError: the file, the command line or the environment can't work as asked.
        PreflightError: another run of ours lives, `--load` is no starting point, models would
            be served on the same ports, or the cluster does not answer.
        RunError: the head, the submission, the cluster or the job failed.
        StopRun: the job went wrong and was ended.
        KeyboardInterrupt: a person stopped it; the job has then ended.
    """
    out = out or sys.stdout
    run_dir = run_dir.absolute()
    config = read_run(config_path, overrides, method=method)
    plan = make_plan(config, run_dir=run_dir, debug=debug)
    tell(plan.text(), out)
    if dry_run:
        return 0
    make_room(run_dir, takeover=takeover, out=out)
    if debug != "rollout" and is_here(config.ray.address):
        again = made_again(plan.value("--load"), run_dir)
        tell(f"{start_of(plan)}{again}", out)
        check_engines(plan)
    write_folder(run_dir, config, plan)
    write_start(run_dir, _how_started(config, config_path, method))
    record = _start(run_dir, config, plan, out)
    if detach:
        tell(f"detached; the run folder is {run_dir}", out)
        return 0
    return _finish(run_dir, config, plan, record, out)


def start_of(plan: Plan) -> str:
    """Where training will start from. Raises PreflightError, see `starting_point`."""
    with_kl = "--use-kl-loss" in plan.options or number(plan.options, "--kl-coef", 0.0) != 0
    load, reference = plan.value("--load"), plan.value("--ref-load")
    return starting_point(load, reference, needs_reference=with_kl)


def _how_started(config: RunConfig, path: Path, method: str | None) -> Start:
    without = None
    with suppress(ConfigError):
        without = read_run(path, (), method=method).model_dump(mode="json")
    return how_started(
        config.method, config.model_dump(mode="json"), without, file=path, preset=False
    )


def write_folder(run_dir: Path, config: RunConfig, plan: Plan) -> None:
    """Writes what is known before the start: config.json, plan.json, turnwise.json, code.zip."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        _write_json(run_dir / "config.json", config.model_dump(mode="json"))
        _write_json(
            run_dir / "plan.json",
            {
                "arguments": plan.arguments,
                "entrypoint": plan.entrypoint,
                "environment": plan.environment,
                "nodes": plan.nodes,
                "gpus_per_node": plan.gpus_per_node,
                "notes": plan.notes,
            },
        )
        custom = custom_config_text(plan)
        (run_dir / CUSTOM_CONFIG).write_text(custom, encoding="utf-8")
        write_bundle(run_dir / BUNDLE, {CUSTOM_CONFIG: custom}, config.method)
    except OSError as error:
        raise ConfigError(f"run folder {run_dir}: {error.strerror or error}") from None


def living(run_dir: Path) -> list[tuple[Path, LaunchRecord, str]]:
    """Runs of ours, in this folder or beside it, that are not over, each with what lives of it.

    A cluster that does not answer hides its jobs: those count as over.
    """
    found = []
    for folder, record in records(run_dir.parent):
        if record.ended is not None and record.head is None:
            continue
        if head_is_alive(record):
            assert record.head is not None
            found.append((folder, record, f"Ray head, process {record.head.process.pid}"))
        elif record.head is None and record.job is not None:
            try:
                state = ray_job.status(record.address, record.job)
            except PreflightError:
                continue
            if state not in (*ray_job.OVER, None):
                found.append((folder, record, f"job {record.job} {state} at {record.address}"))
    return found


def make_room(run_dir: Path, *, takeover: bool, out: TextIO) -> None:
    """Refuses to go on beside a living run of ours, or ends it.

    Raises:
        PreflightError: listing what lives and how to end it.
    """
    found = living(run_dir)
    if found and not takeover:
        listed = "\n".join(f"  {folder}: {what}" for folder, _, what in found)
        raise PreflightError(
            f"a run of ours still lives:\n{listed}\nstop it, or end it with --takeover"
        )
    for folder, _, what in found:
        tell(f"takeover: ending {folder}: {what}", out)
        stop(folder, out=out)


def status(run_dir: Path, *, out: TextIO | None = None) -> int:
    """Says how a run is doing and fetches its log and metrics so far.

    Returns:
        0 if it goes on or succeeded, 4 if it failed or is gone.

    Raises:
        ConfigError: the folder holds no run of the cluster.
    """
    out = out or sys.stdout
    record = _record(run_dir)
    state = record.ended
    if state is None and record.job is not None:
        try:
            token = token_of(record.head)
            state = ray_job.status(record.address, record.job, token)
            ray_job.fetch_log(record.address, record.job, run_dir, token)
        except PreflightError as error:
            tell(str(error), out)
    alive = head_is_alive(record)
    own = f"own head, process {record.head.process.pid}" if record.head else "shared cluster"
    tell(f"{run_dir}: job {record.job or 'not submitted'}: {state or 'GONE'}", out)
    gone = "" if alive or record.head is None else ", which is gone"
    tell(f"cluster: {record.address} ({own}{gone})", out)
    metrics = run_dir / "metrics.jsonl"
    if metrics.is_file() and (lines := metrics.read_text(errors="replace").splitlines()):
        tell(f"last metrics: {lines[-1]}", out)
    return 0 if state in ("PENDING", "RUNNING", "SUCCEEDED") else 4


def stop(run_dir: Path, *, out: TextIO | None = None) -> int:
    """Ends the job and the head that the run folder names, and nothing else.

    Raises:
        ConfigError: the folder holds no run of the cluster, it was started elsewhere, or the
            process that it names is not what it says.
        RunError: the job did not end.
    """
    out = out or sys.stdout
    record = _record(run_dir)
    if record.head is not None and record.host != hostname():
        raise ConfigError(
            f"{run_dir}: the run was started on {record.host}, which has its head; stop it there"
        )
    state = record.ended
    if state is None and record.job is not None:
        try:
            token = token_of(record.head)
            state = ray_job.stop(record.address, record.job, token)
            ray_job.fetch_log(record.address, record.job, run_dir, token)
        except PreflightError:
            state = "GONE"
    if head_is_alive(record):
        assert record.head is not None
        if not is_ours(record.head):
            raise ConfigError(
                f"{run_dir / NAME}: process {record.head.process.pid} is no Ray head at"
                f" {record.head.address} with the folder {record.head.temp_dir}; nothing was ended"
                " or deleted"
            )
        _stop_head(run_dir, record.head, out)
    write_record(run_dir, record.model_copy(update={"ended": state or "GONE", "head": None}))
    tell(f"{run_dir}: {state or 'nothing was running'}", out)
    return 0


def _start(run_dir: Path, config: RunConfig, plan: Plan, out: TextIO) -> LaunchRecord:
    """Attaches or starts a head, submits, and leaves a record of each step."""
    address = config.ray.address
    head: Head | None = None
    if address is None:
        log = run_dir / "logs" / "ray_head.log"
        head = start_head(config.ray, num_gpus=plan.gpus_per_node, log=log)
        address = head.address
    record = LaunchRecord(address=address, head=head, host=hostname())
    try:
        write_record(run_dir, record)
        tell(f"cluster: {address}{' (own head)' if head else ''}", out)
        if head is not None and plan.nodes > 1:
            tell(
                f"on each of the other {plan.nodes - 1} nodes: RAY_AUTH_MODE=token"
                f" RAY_AUTH_TOKEN_PATH=FILE ray start --address={head.join} --num-gpus"
                f" {plan.gpus_per_node}, where FILE is a copy of {head.temp_dir}/{TOKEN}; slime"
                " waits for them",
                out,
            )
        job = f"turnwise-{run_dir.name}-{uuid.uuid4().hex[:8]}"
        # Written before it is submitted: a launcher that dies in between leaves no unknown job.
        record = record.model_copy(update={"job": job})
        write_record(run_dir, record)
        ray_job.submit(
            address,
            token=token_of(head),
            job=job,
            entrypoint=plan.entrypoint,
            environment=plan.environment,
            bundle=run_dir / BUNDLE,
            run=str(run_dir),
        )
    except BaseException:
        if head is not None:
            _stop_head(run_dir, head, out)
        write_record(run_dir, record.model_copy(update={"ended": "FAILED", "head": None}))
        raise
    tell(f"job: {job}", out)
    return record


def _finish(run_dir: Path, config: RunConfig, plan: Plan, record: LaunchRecord, out: TextIO) -> int:
    """Follows the job to its end; then our own head ends too, and the result is told."""
    assert record.job is not None
    state: str | None = "STOPPED"
    said = ""
    token = token_of(record.head)
    follower = Follower(run_dir, record.job, out)
    watch = FolderWatch(run_dir, RowWatch(config.stop))
    try:
        state = ray_job.follow(
            record.address, record.job, token, follower, _head_lives(record), watch.look, out
        )
        if state != "SUCCEEDED":
            said = str(follower.error) or ray_job.message(record.address, record.job, token)
    except StopRun as stop:
        raise StopRun(f"job {record.job} was stopped: {stop}; {_go_on(plan)}") from None
    except RunError:
        # On a cluster of others the job may go on; `status` and `stop` still find it.
        state = None if record.head is None else "LOST"
        raise
    finally:
        follower.close()
        if record.head is not None:
            _stop_head(run_dir, record.head, out)
        write_record(run_dir, record.model_copy(update={"ended": state, "head": None}))
        if state == "SUCCEEDED":
            name = method_name(find_method(config.method))
            tell_result(run_dir, name, whole(plan.options, "--rollout-seed", 42), out)
        make_report(run_dir, out)
    if state != "SUCCEEDED":
        raise RunError(f"job {record.job} {state}: {said or 'no cause'}; see {run_dir / 'logs'}")
    tell(f"job {record.job} {state}; the run folder is {run_dir}", out)
    return 0


def _go_on(plan: Plan) -> str:
    """How a run that was broken off goes on."""
    save = plan.value("--save")
    if save is None or iteration(Path(save)) is None:
        return "no checkpoint was saved"
    return f"the last checkpoint is in {save}, and the same command goes on from --load"


def _head_lives(record: LaunchRecord) -> Callable[[], bool]:
    return lambda: record.head is None or head_is_alive(record)


def _stop_head(run_dir: Path, head: Head, out: TextIO) -> None:
    killed = stop_head(head, run_dir / "logs" / "ray")
    if killed:
        tell(f"{len(killed)} processes of the head had to be killed", out)


def _record(run_dir: Path) -> LaunchRecord:
    record = read_record(run_dir)
    if record is None:
        raise ConfigError(f"{run_dir}: holds no run of the cluster (no launch.json)")
    return record


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
