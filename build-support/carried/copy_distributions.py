"""Copies installed pure distributions into a folder, for PEX files to carry.

    copy_distributions.py FOLDER NAME...

The files keep their places, `*.dist-info` included, so that `importlib.metadata` finds them again.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from pathlib import Path


def copy_distribution(name: str, target: Path) -> None:
    """Raises SystemExit if the distribution is missing or holds compiled code."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(f"{name}: not in third_party/python/default.lock") from None
    if "Root-Is-Purelib: true" not in (distribution.read_text("WHEEL") or ""):
        raise SystemExit(
            f"{name}: has compiled code, which one PEX file can't carry for every Python"
        )
    for entry in distribution.files or ():
        source = Path(str(distribution.locate_file(entry)))
        left_out = {"..", "__pycache__"} & set(entry.parts) or ".pex-info" in entry.parts[0]
        if left_out or not source.is_file():
            continue
        place = target / entry
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        copy_distribution(argument, Path(sys.argv[1]))
