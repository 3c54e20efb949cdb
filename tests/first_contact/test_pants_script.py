"""`./pants` finds the Pythons that it needs, has uv bring them, or says how they are had."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = (
    "bash",
    "cat",
    "cp",
    "cut",
    "dirname",
    "env",
    "mkdir",
    "mktemp",
    "mv",
    "readlink",
    "rm",
    "sha256sum",
)

# Stands for an interpreter: answers the script's question, makes environments, runs `pants`.
PYTHON = """#!/usr/bin/env bash
case "$1 $2" in
  "-c "*) [[ "$2" == *"{version}"* ]] && readlink -f "$0" ;;
  "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip") : ;;
  "-m pants") shift 2; echo "pants $*"; echo "path $PATH" ;;
  *) exit 1 ;;
esac
"""
UV = """#!/usr/bin/env bash
echo "uv $*" >&2
[ -e "{shelf}/${{@: -1}}" ] || exit 2
mkdir -p "$UV_PYTHON_INSTALL_DIR/cpython-${{@: -1}}.9-linux/bin"
cp "{shelf}/${{@: -1}}" "$UV_PYTHON_INSTALL_DIR/cpython-${{@: -1}}.9-linux/bin/python3"
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with the tools of the script and no Python; its PATH is `bin`."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        link = tmp_path / "bin" / tool
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(found)
    for name in ("pants", ".pants.bootstrap", "build-support/pants/requirements.lock"):
        (tmp_path / "repo" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "repo" / name)
    return tmp_path


def start(machine: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(machine / "bin"), "HOME": str(machine / "home")}
    return subprocess.run(
        [machine / "bin" / "bash", machine / "repo" / "pants", "--version"],
        env={**environment, "PIP_FIND_LINKS": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )


def test_pythons_that_are_here_are_used_as_they_are(machine: Path) -> None:
    write(machine / "bin/python3.9", PYTHON.format(version="3.9"))
    write(machine / "home/.pyenv/versions/3.11.7/bin/python", PYTHON.format(version="3.11"))
    done = start(machine)
    assert done.returncode == 0, done.stderr
    assert "pants --version" in done.stdout and "uv" not in done.stderr


def test_uv_brings_what_is_missing_and_it_is_said(machine: Path) -> None:
    for version in ("3.9", "3.11"):
        write(machine / "shelf" / version, PYTHON.format(version=version))
    write(machine / "bin/uv", UV.format(shelf=machine / "shelf"))
    done = start(machine)
    assert done.returncode == 0, done.stderr
    for version in ("3.9", "3.11"):
        assert f"no CPython {version} here" in done.stderr
    pythons = machine / "home/.cache/pants-setup/python"
    path = next(line for line in done.stdout.splitlines() if line.startswith("path "))
    assert path.startswith(f"path {pythons}/cpython-3.11.9-linux/bin:")
    again = start(machine)
    assert again.returncode == 0 and "uv" not in again.stderr


def test_where_uv_can_not_help_the_commands_are_printed(machine: Path) -> None:
    for bring in (False, True):
        if bring:
            write(machine / "bin/uv", UV.format(shelf=machine / "empty"))
        done = start(machine)
        assert done.returncode == 1
        for words in (
            "needs CPython 3.9",
            "uv python install 3.9",
            "pyenv install 3.9",
            "apt",
            "dnf",
        ):
            assert words in done.stderr
