"""The commands as a GPU node gets them: a PEX, the node's own Python, what its image has.

Each environment is made anew and holds `node-requirements.txt` alone. Nothing of this repository
is on its path but the PEX.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path.cwd()
LOCK = ROOT / "third_party/python/default.lock"
STANDIN = ROOT / "libs/turnwise/tests/slime_standin"
COMMANDS = ROOT / "apps.trainers.tau"
AGENTFLOW = ROOT / "apps.trainers.agentflow"
pytestmark = pytest.mark.skipif(
    not COMMANDS.is_dir(), reason="needs the packaged commands: ./pants test tests/packaging"
)


@dataclass(frozen=True)
class Node:
    """A Python environment with a node's packages."""

    version: str
    python: Path
    folder: Path

    def run(
        self, pex: str, *arguments: str, folder: Path = COMMANDS, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder),
            "PEX_ROOT": str(self.folder / "pex"),
            "COLUMNS": "200",
            **variables,
        }
        return subprocess.run(
            [self.python, folder / pex, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture(scope="module", params=["3.11", "3.12"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Node:
    version: str = request.param
    found = next(_interpreters(version), None)
    if found is None:
        pytest.skip(f"no Python {version} here")
    folder = tmp_path_factory.mktemp("node")
    _check_run([found, "-m", "venv", folder / "venv"])
    python = folder / "venv/bin/python"
    constraints = folder / "constraints.txt"
    pins = re.findall(r"^([\w.-]+==[\w.]+) ", LOCK.read_text(), re.MULTILINE)
    constraints.write_text("\n".join(pins) + "\n")
    requirements = Path(__file__).parent / "node-requirements.txt"
    _check_run([python, "-m", "pip", "install", "-q", "-c", constraints, "-r", requirements])
    return Node(version, python, folder)


def _interpreters(version: str) -> Iterator[Path]:
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    candidates = [
        *([Path(on_path)] if on_path else []),
        *home.glob(f"versions/{version}*/bin/python"),
    ]
    ask = "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        answer = subprocess.run([candidate, "-c", ask], capture_output=True, text=True)
        if answer.stdout.strip() == version:
            yield candidate


def _check_run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("pex", "arguments"),
    [
        ("train.pex", ["--backend", "slime", "--help"]),
        ("prepare.pex", ["--help"]),
        ("check.pex", ["--help"]),
    ],
)
def test_a_command_explains_itself_on_a_node(node: Node, pex: str, arguments: list[str]) -> None:
    done = node.run(pex, *arguments)
    assert done.returncode == 0, done.stderr
    assert "--" in done.stdout


def test_prepare_writes_the_tasks_on_a_node(node: Node, tmp_path: Path) -> None:
    done = node.run("prepare.pex", "--local-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "retail_train_tasks.jsonl").read_text().splitlines()) == 500


def test_check_finds_what_a_node_without_gpus_lacks(node: Node) -> None:
    preset = ROOT / "apps/trainers/tau/presets/qwen3-4b-instruct-2507.toml"
    done = node.run("check.pex", "--config", str(preset))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "configuration" in done.stdout


def test_check_names_a_flag_that_slime_does_not_have(node: Node, tmp_path: Path) -> None:
    preset = (ROOT / "apps/trainers/tau/presets/qwen3-4b-instruct-2507.toml").read_text()
    config = tmp_path / "run.toml"
    config.write_text(preset.replace("[grpo]", "[grpo]\neps-clipp = 0.2"))
    done = node.run("check.pex", "--config", str(config))
    assert done.returncode in (2, 3)
    assert "eps-clipp" in done.stdout + done.stderr
    assert "eps-clip" in done.stdout + done.stderr


def test_the_hooks_can_be_imported_on_a_node(node: Node) -> None:
    probe = (
        "import sys, turnwise.slime as hooks; from taubench import load_tasks;"
        "print('%d.%d' % sys.version_info[:2], callable(hooks.generate),"
        " len(load_tasks('retail', 'test')))"
    )
    done = node.run("train.pex", "-c", probe, PEX_INTERPRETER="1", PYTHONPATH=str(STANDIN))
    assert done.stdout.split() == [node.version, "True", "115"], done.stderr


def test_without_slime_a_hook_says_what_is_missing(node: Node) -> None:
    done = node.run("train.pex", "-c", "import turnwise.slime", PEX_INTERPRETER="1")
    assert done.returncode != 0
    assert "No module named 'slime'" in done.stderr


def test_the_second_method_plans_a_run_on_a_node(node: Node) -> None:
    preset = ROOT / "apps/trainers/agentflow/presets/qwen2.5-7b.toml"
    words = ["--backend", "slime", "--config", str(preset), "--dry-run"]
    done = node.run("train.pex", *words, folder=AGENTFLOW)
    assert done.returncode == 0, done.stderr
    assert "--custom-generate-function-path turnwise.slime.generate" in done.stdout


def test_the_second_method_is_found_by_its_name_on_a_node(node: Node) -> None:
    probe = (
        "from turnwise.method import make_method;"
        "print(type(make_method('agentflow', {'helpers': 'rules'})).__name__)"
    )
    done = node.run("train.pex", "-c", probe, folder=AGENTFLOW, PEX_INTERPRETER="1")
    assert done.stdout.split() == ["AgentFlowMethod"], done.stderr
