"""The command that the README names for its figures runs from a checkout."""

import os
import subprocess
import sys
from pathlib import Path


def test_the_measuring_command_finds_all_it_imports() -> None:
    # tokendelta itself is installed, as a wheel; the paths of the test runner are not given on.
    import tokendelta

    command = [sys.executable, "-m", "benchmarks.tokendelta.measure", "--help"]
    installed = str(Path(tokendelta.__file__).parents[1])
    packages = os.pathsep.join(p for p in sys.path if "site-packages" in p or p == installed)
    environment = {**os.environ, "PYTHONPATH": packages}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "README" in done.stdout
