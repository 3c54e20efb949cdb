"""Each tracker's own package is sent a run, without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "third_party/python/trackers.lock"
# Two sessions of one run: the second is a resumed one. What each package holds is read by its API.
SCRIPT = """
import json, sys
from pathlib import Path
from turnwise.run.folder import RunFolder
from turnwise.run.trackers import Trackers, require_packages

name, path = sys.argv[1], Path(sys.argv[2])
require_packages([name])
folder = RunFolder.create(path, "tau", {"seed": 3})
said = []
for steps in ((1, 2), (3,)):
    trackers = Trackers([name], folder=folder, method="tau", config={"seed": 3}, say=said.append)
    for step in steps:
        trackers.log({"step": step, "kind": "train", "loss": step / 7, "kl": None})
    trackers.close()

def tensorboard():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(path / "tensorboard")).Reload()
    # It keeps float32.
    near = lambda event: event.step / 7 if abs(event.value - event.step / 7) < 1e-6 else event.value
    return [[event.step, near(event)] for event in events.Scalars("train/loss")]

def mlflow():
    from mlflow import MlflowClient
    client = MlflowClient(tracking_uri=(path / "mlflow").as_uri())
    run = (path / "mlflow_run.txt").read_text()
    return [[one.step, one.value] for one in client.get_metric_history(run, "train/loss")]

def trackio():
    from trackio.sqlite_storage import SQLiteStorage
    rows = SQLiteStorage.get_logs("turnwise-tau", path.name)
    return [[row["step"], row["train/loss"]] for row in rows]

def wandb():
    # The package has no reader of its own for what it keeps offline: records with names and JSON.
    kept = b"".join(file.read_bytes() for file in path.glob("wandb/offline-run-*/*.wandb"))
    return [[step, step / 7] for step in (1, 2, 3)
            if b"train/loss" in kept and json.dumps(step / 7).encode() in kept]

print(json.dumps({"said": said, "found": globals()[name]()}))
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the lock names; the environment of the tests has no pip of its own."""
    folder = tmp_path_factory.mktemp("packages")
    python = Path(sys.base_prefix) / f"bin/python3.{sys.version_info.minor}"
    if subprocess.run([python, "-c", "import ensurepip"], capture_output=True).returncode:
        pytest.skip(f"{python} has no ensurepip")
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv/bin/python", "-m", "pip", "install", "-q", "--no-deps"]
    target = folder / "site"
    done = subprocess.run(
        [*pip, "--target", target, "-r", LOCK], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_run_and_its_resumption_are_one_run_in_the_tracker(
    packages: Path, tmp_path: Path, name: str
) -> None:
    path = [*(str(Path(entry).resolve()) for entry in sys.path if entry), str(packages)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "HOME": str(tmp_path),
            "TRACKIO_DIR": str(tmp_path / "trackio"),
            "WANDB_MODE": "offline",
        },
    )
    assert done.returncode == 0, done.stderr
    found = [[step, step / 7] for step in (1, 2, 3)]
    assert json.loads(done.stdout.splitlines()[-1]) == {"said": [], "found": found}
