"""The folder says what may import what:

libs/tokendelta, libs/toolparse, libs/sandbox <- libs/turnwise <- libs/taubench <- apps; apps never
import each other; slime, sglang, ray and megatron are imported only by turnwise.slime and
turnwise.launch.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CLUSTER = {"slime", "sglang", "ray", "megatron"}
BELOW = {"tokendelta", "toolparse", "sandbox"}
OURS = {*BELOW, "turnwise", "taubench", "apps"}
CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import|c?import\s+([\w.]+))", re.MULTILINE)


def imported_modules(path: Path) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".pyx":
        for match in CYTHON_IMPORT.finditer(source):
            yield match[1] or match[2]
        return
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def allowed(path: Path) -> set[str]:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "apps":
        return {*BELOW, "turnwise", "taubench", ".".join(parts[:3])}
    if parts[1] == "taubench":
        return {*BELOW, "turnwise", "taubench"}
    if parts[1] == "turnwise":
        return {*BELOW, "turnwise"}
    return {parts[1]}


def violations(path: Path) -> Iterator[str]:
    own = allowed(path)
    cluster = path.is_relative_to(ROOT / "libs/turnwise/src/turnwise/slime") or path.is_relative_to(
        ROOT / "libs/turnwise/src/turnwise/launch"
    )
    for module in imported_modules(path):
        top = module.split(".")[0]
        if top in OURS and not any(module == name or module.startswith(f"{name}.") for name in own):
            yield f"{path.relative_to(ROOT)} imports {module}"
        if top in CLUSTER and not cluster:
            yield f"{path.relative_to(ROOT)} imports {module}"


def sources() -> list[Path]:
    return [
        path
        for top in ("libs", "apps")
        for path in sorted((ROOT / top).rglob("*"))
        if path.suffix in (".py", ".pyx")
        and "tests" not in path.parts
        and "build" not in path.parts
    ]


def test_imports_go_one_way() -> None:
    found = [line for path in sources() for line in violations(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "top",
    ["libs/tokendelta", "libs/toolparse", "libs/sandbox", "libs/turnwise", "libs/taubench", "apps"],
)
def test_the_check_sees_every_part_of_the_tree(top: str) -> None:
    assert any(path.is_relative_to(ROOT / top) for path in sources())


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("libs/tokendelta/src/tokendelta/x.py", "import turnwise.episode"),
        ("libs/toolparse/src/toolparse/x.py", "from tokendelta import pack"),
        ("libs/sandbox/src/sandbox/x.py", "from turnwise.config import Config"),
        ("libs/toolparse/src/toolparse/x.py", "import sandbox"),
        ("libs/turnwise/src/turnwise/x.py", "from apps.trainers.tau import train"),
        ("libs/turnwise/src/turnwise/x.py", "import slime.utils"),
        ("apps/evaluators/tau/x.py", "from apps.trainers.tau import train"),
        ("apps/trainers/tau/x.py", "import ray"),
    ],
)
def test_a_wrong_import_would_be_found(
    place: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert list(violations(path))
