"""The interpreter that has agents' libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOCK = Path(__file__).parents[2] / "third_party/python/clients.lock"


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with what the lock names, and nothing of ours."""
    given = os.environ.get("TURNWISE_CLIENTS_PYTHON")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("clients")
    base = Path(sys.base_prefix) / f"bin/python3.{sys.version_info.minor}"
    if subprocess.run([base, "-c", "import ensurepip"], capture_output=True).returncode:
        pytest.skip(f"{base} has no ensurepip")
    subprocess.run([base, "-m", "venv", folder], check=True)
    pip: list[str | Path] = [
        folder / "bin/python",
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-compile",
    ]
    done = subprocess.run([*pip, "-r", LOCK], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder / "bin/python"
