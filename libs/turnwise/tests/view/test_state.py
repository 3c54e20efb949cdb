import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run.pages import run_folder
from turnwise.run.folder import RunFolder
from turnwise.run.lock import NAME, locked
from turnwise.view.state import QUIET_S, run_state


def test_a_run_with_a_summary_is_finished(tmp_path: Path) -> None:
    assert run_state(run_folder(tmp_path), 1.0) == "finished"


def test_a_run_whose_lock_is_held_is_running_however_long_it_is_silent(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, ended=False)
    with locked(folder.path):
        assert run_state(folder, 1.0, time.time() + 1e6) == "running"
    assert run_state(folder, 1.0) == "stopped"


def test_a_run_that_was_killed_is_stopped(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, ended=False)
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom turnwise.run.lock import locked\n"
        "with locked(Path(sys.argv[1])):\n print('held', flush=True)\n time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder.path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None and process.stdout.readline()
        assert run_state(folder, 1.0) == "running"
    finally:
        process.kill()
        process.wait()
    assert run_state(folder, 1.0) == "stopped"


@pytest.mark.parametrize("longest", [1.0, 1000.0])
def test_a_run_of_another_machine_is_silent_after_three_of_its_longest_steps(
    tmp_path: Path, longest: float
) -> None:
    folder: RunFolder = run_folder(tmp_path, ended=False)
    (folder.path / NAME).write_text("process 1 on another-machine since 2026-01-01 00:00:00\n")
    written = folder.episodes.stat().st_mtime
    quiet = max(QUIET_S, 3 * longest)
    assert "another-machine" != socket.gethostname()
    assert run_state(folder, longest, written + quiet - 2) == "running"
    assert run_state(folder, longest, written + quiet + 2) == "silent"
