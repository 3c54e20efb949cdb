"""Our code as one archive that Ray unpacks on every node.

It holds the packages of this product with their compiled extensions (stable ABI, so one archive
serves Python 3.11 and later), the pure dependencies that the node's image lacks, and the files of
the run. Ray puts the unpacked folder first on the path of the job and of all its workers.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from turnwise.answers.verifier import APART
from turnwise.command import PreflightError
from turnwise.method import find_method

PACKAGES = ("turnwise", "tokendelta", "toolparse", "sandbox", "taubench", "apps")
# A method that needs one of these imports it, so where it is missing nothing needs it.
OPTIONAL = ("sandbox", "taubench", "apps")
COMPILED = ("tokendelta", "toolparse")
_LEFT_OUT_FOLDERS = {"__pycache__", "tests", "tests_launch", "tests_training", "golden", "build"}
_LEFT_OUT_SUFFIXES = {".pyc", ".pyx", ".pxd", ".c", ".cpp"}
# The same code gives the same archive, which Ray then keeps by its hash.
_DATE = (2020, 1, 1, 0, 0, 0)


def write_bundle(path: Path, files: Mapping[str, str], method: str) -> int:
    """Writes the archive.

    Args:
        path: Where to; the name must end in .zip.
        files: Content of further files by name.
        method: What the job plays: its own files, `distributions` and `apart` travel too.

    Returns:
        Its size in bytes.

    Raises:
        PreflightError: a package of ours is not installed or was not compiled, or one that the
            method needs is not here.
    """
    members: dict[str, Path] = {}
    for package in PACKAGES:
        members.update(_package_files(package))
    for package in COMPILED:
        if not any(name.startswith(f"{package}/") and ".so" in name for name in members):
            raise PreflightError(
                f"{package} has no compiled extension, so no node could load it; run from a "
                "build of this product (./pants run, or a packaged .pex)"
            )
    cls = find_method(method)
    members.update(_own_files(cls.__module__, members))
    for distribution in (*cls.distributions, *cls.apart):
        below = f"{APART}/" if distribution in cls.apart else ""
        files_of = {below + name: path for name, path in _distribution_files(distribution)}
        if not files_of:
            raise PreflightError(
                f"{distribution} is not installed here, so no node could play {method}: install it"
                " without its dependencies"
            )
        members.update(files_of)
    part = path.with_name(f"{path.name}.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, source in sorted(members.items()):
            _write(archive, name, source.read_bytes())
        for name, text in sorted(files.items()):
            _write(archive, name, text.encode())
    part.replace(path)
    return path.stat().st_size


def _own_files(module: str, members: Mapping[str, Path]) -> dict[str, Path]:
    """The files of a method that is not of our packages: its package, or its one file."""
    if f"{module.replace('.', '/')}.py" in members:
        return {}
    package, _, _ = module.partition(".")
    spec = importlib.util.find_spec(package)
    assert spec is not None, "the method was imported from it"
    if spec.submodule_search_locations:
        return dict(_package_files(package))
    assert spec.origin is not None
    return {f"{package}.py": Path(spec.origin)}


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)


def _package_files(package: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        if package in OPTIONAL:
            return
        raise PreflightError(f"{package} is not installed, so it cannot be sent to the nodes")
    for folder in map(Path, spec.submodule_search_locations):
        for path in sorted(folder.rglob("*")):
            relative = path.relative_to(folder)
            if path.is_file() and _belongs(relative):
                yield str(PurePosixPath(package, relative.as_posix())), path


def _belongs(relative: Path) -> bool:
    return (
        not _LEFT_OUT_FOLDERS & set(relative.parts)
        and relative.suffix not in _LEFT_OUT_SUFFIXES
        and relative.name not in ("BUILD", "conftest.py")
    )


def _distribution_files(name: str) -> Iterator[tuple[str, Path]]:
    """Files of an installed pure distribution; none if it is not installed or not pure."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    if "Root-Is-Purelib: true" not in (distribution.read_text("WHEEL") or ""):
        return
    for entry in distribution.files or ():
        path = Path(str(distribution.locate_file(entry)))
        if ".." not in entry.parts and path.is_file() and _belongs(Path(entry)):
            yield entry.as_posix(), path
