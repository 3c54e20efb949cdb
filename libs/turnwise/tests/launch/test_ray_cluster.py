"""Jobs on a real Ray cluster on the CPU: submitted, followed, stopped, taken over."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from turnwise.command import PreflightError, RunError
from turnwise.launch import run, status, stop
from turnwise.launch.head import start_head, stop_head
from turnwise.launch.preset import RayConfig
from turnwise.launch.processes import family, is_alive
from turnwise.launch.record import Head, read_record

# In place of slime's train.py: one worker does what slime's rollout worker does with our hooks.
TRAIN = """
import json, os, sys, time
import ray

here = os.getcwd()
end = sys.argv[sys.argv.index("--num-rollout") + 1]
if end == "2":
    raise SystemExit("out of memory")
if end == "3":
    time.sleep(300)
with open(sys.argv[sys.argv.index("--custom-config-path") + 1]) as stream:
    options = json.load(stream)["turnwise"]


@ray.remote(num_gpus=1)
class Rollout:
    def paths(self):
        import importlib.util, tokendelta, toolparse, turnwise
        from turnwise.taubench import Environment, load_tasks
        task = load_tasks(options["env"], options["task_split"])[3]
        environment = Environment(task)
        for action in task.actions:
            environment.step(action)
        found = {m.__name__: m.__file__ for m in (turnwise, tokendelta, toolparse)}
        found["tau_trait"] = importlib.util.find_spec("tau_trait").origin
        found["core"] = importlib.util.find_spec("tokendelta._core").origin
        return {"files": found, "score": environment.score().r_actions, "path": sys.path,
                "probe": os.environ.get("PROBE"), "megatron": os.environ["PYTHONPATH"]}


ray.init()
worker = Rollout.remote()
said = ray.get(worker.paths.remote())
print("REPORT " + json.dumps({"cwd": here, **said}), flush=True)
print("[2026-01-01 00:00:00] rollout.py:1 - rollout 0: {'rollout/raw_reward': 0.5}", flush=True)
print("[2026-01-01 00:00:00] model.py:1 - step 0: {'train/loss': nan, 'train/lr': 1e-06}")
sys.stdout.flush()
if end == "4":
    print("waiting", flush=True)
    time.sleep(300)
"""
CONFIG = """
[model]
name = "qwen2.5-0.5B"
[ray]
python = "{python}"
slime-dir = "{slime}"
megatron-dir = "/megatron"
{address}
[cluster]
actor-num-gpus-per-node = 1
colocate = true
[rollout]
num-rollout = 1
rollout-batch-size = 4
rollout-max-context-len = 4096
"""


@pytest.fixture(scope="module")
def slime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slime")
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    log = tmp_path_factory.mktemp("cluster") / "head.log"
    head = start_head(RayConfig(python=sys.executable), num_gpus=2, log=log)
    yield head
    stop_head(head, log.parent)


def config(folder: Path, slime: Path, head: Head | None = None) -> Path:
    path = folder / "run.toml"
    address = f'address = "{head.address}"' if head else ""
    path.write_text(CONFIG.format(python=sys.executable, slime=slime, address=address))
    return path


def wait_for(run_dir: Path, text: str, limit_s: float = 60.0) -> None:
    log = run_dir / "logs/job.log"
    until = time.monotonic() + limit_s
    while not (log.is_file() and text in log.read_text()):
        assert time.monotonic() < until, log.read_text() if log.is_file() else "no log"
        time.sleep(0.1)


def test_our_code_reaches_a_worker_through_the_runtime_environment_alone(
    tmp_path: Path, slime: Path, cluster: Head
) -> None:
    out = io.StringIO()
    run_dir = tmp_path / "runs" / "one"
    path = config(tmp_path, slime, cluster)
    code = run(path, ["--ray.env-vars.PROBE", "here"], run_dir=run_dir, out=out)
    assert code == 0
    log = (run_dir / "logs/job.log").read_text()
    report = json.loads(log.split("REPORT ", 1)[1].split("\n", 1)[0])
    assert report["score"] is True
    assert report["probe"] == "here"
    assert report["megatron"].split(os.pathsep)[-1] == "/megatron"
    unpacked = report["cwd"]
    assert "working_dir_files" in unpacked
    assert all(file.startswith(unpacked + "/") for file in report["files"].values())
    assert not any(entry.startswith(os.getcwd()) for entry in report["path"] if entry)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows == [
        {"step": 0, "kind": "rollout", "rollout/raw_reward": 0.5},
        {"step": 0, "kind": "train", "train/loss": None, "train/lr": 1e-06},
    ]
    assert "rollout 0: {" in out.getvalue()
    record = read_record(run_dir)
    assert record is not None and record.ended == "SUCCEEDED"
    assert status(run_dir, out=out) == 0


def test_a_job_that_fails_is_a_failed_run_with_rays_word_and_the_log(
    tmp_path: Path, slime: Path, cluster: Head
) -> None:
    run_dir = tmp_path / "runs" / "one"
    with pytest.raises(RunError, match="FAILED: .*exit code 1"):
        run(
            config(tmp_path, slime, cluster),
            ["--num-rollout", "2"],
            run_dir=run_dir,
            out=io.StringIO(),
        )
    assert "out of memory" in (run_dir / "logs/job.log").read_text()
    assert status(run_dir, out=io.StringIO()) == 4
    assert is_alive(cluster.process)


def test_a_detached_run_is_refused_a_second_time_and_taken_over_without_harm_to_others(
    tmp_path: Path, slime: Path, cluster: Head
) -> None:
    other, mine = tmp_path / "others" / "other", tmp_path / "runs" / "one"
    path = config(tmp_path, slime, cluster)
    out = io.StringIO()
    wait = ["--num-rollout", "3"]
    run(path, wait, run_dir=other, detach=True, out=out)
    run(path, wait, run_dir=mine, detach=True, out=out)
    assert status(mine, out=out) == 0
    again = mine.with_name("two")
    with pytest.raises(PreflightError, match=r"still lives:\n  .*/runs/one: job turnwise-one-"):
        run(path, run_dir=again, out=out)
    assert not again.exists()
    assert run(path, run_dir=again, takeover=True, out=out) == 0
    record = read_record(mine)
    assert record is not None and record.ended == "STOPPED"
    assert status(other, out=out) == 0
    stop(other, out=out)
    assert "STOPPED" in out.getvalue().splitlines()[-1]
    assert is_alive(cluster.process)


def test_one_interrupt_ends_the_job_and_a_head_of_its_own_with_every_process(
    tmp_path: Path, slime: Path
) -> None:
    run_dir = tmp_path / "runs" / "one"
    path = config(tmp_path, slime)
    program = (
        "import sys; from pathlib import Path\n"
        "from turnwise.command import run_command\n"
        "from turnwise.launch import run\n"
        "sys.exit(run_command(lambda argv: run(Path(argv[0]), ['--num-rollout', '4'], "
        "run_dir=Path(argv[1])), sys.argv[1:]))\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, str(path), str(run_dir)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(run_dir, "waiting")
        record = read_record(run_dir)
        assert record is not None and record.head is not None
        members = family(record.head.process)
        assert len(members) > 5
        launcher.send_signal(signal.SIGINT)
        said, _ = launcher.communicate(timeout=60)
        assert launcher.returncode == 130, said
        assert "stopping the job" in said and said.rstrip().endswith("interrupted")
        assert not [one for one in members if is_alive(one)]
        assert not Path(record.head.temp_dir).exists()
        ended = read_record(run_dir)
        assert ended is not None and ended.ended == "STOPPED" and ended.head is None
        assert list((run_dir / "logs/ray").glob("session_*/raylet.out"))
    finally:
        if launcher.poll() is None:
            launcher.kill()
            stop(run_dir)
