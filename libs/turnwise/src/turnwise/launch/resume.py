"""Where a run starts from, said in words before anything starts.

slime resumes from `--load` if that folder has a checkpoint of its own, and otherwise starts from
`--ref-load` without a word. A folder that holds something else is refused here, because slime
would train from the start and write its checkpoints among those files.
"""

from __future__ import annotations

from pathlib import Path

from turnwise.command import PreflightError

TRACKER = "latest_checkpointed_iteration.txt"


def iteration(folder: Path) -> str | None:
    """The iteration that a Megatron checkpoint folder names as its latest, or None."""
    try:
        return (folder / TRACKER).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def starting_point(load: str | None, ref_load: str | None) -> str:
    """What the run will start from.

    Args:
        load: The value of `--load`, or None.
        ref_load: The value of `--ref-load`, or None.

    Raises:
        PreflightError: `load` holds something, but no checkpoint that slime would read.
    """
    origin = f"from the reference model {ref_load}" if ref_load else "from --hf-checkpoint"
    if load is None:
        return f"first run: there is no --load, so training starts {origin}"
    folder = Path(load)
    if not folder.exists():
        return f"first run: --load {load} does not exist yet, so training starts {origin}"
    if not folder.is_dir():
        raise PreflightError(f"--load {load}: is a file; name the folder of the checkpoints")
    if not any(folder.iterdir()):
        return f"first run: --load {load} is empty, so training starts {origin}"
    latest = iteration(folder)
    if latest is not None:
        _check_iteration(folder, latest)
        return f"resumes from --load {load}, iteration {latest}"
    if (folder / "config.json").is_file():
        return f"first run: training starts from the Hugging Face weights in --load {load}"
    raise PreflightError(
        f"--load {load}: is not empty, but has no {TRACKER}; slime would start anew and write "
        "among these files. For a first run name an empty or absent folder; to resume, name the "
        "folder that --save wrote"
    )


def _check_iteration(folder: Path, latest: str) -> None:
    if latest == "release":
        return
    if not latest.isdecimal():
        raise PreflightError(
            f"--load {folder}: {TRACKER} names {latest!r}, which is no iteration; write the number "
            "of a folder iter_* into it"
        )
    name = f"iter_{int(latest):07d}"
    if not (folder / name).is_dir():
        raise PreflightError(
            f"--load {folder}: {TRACKER} names iteration {latest}, but {name} is not there; write "
            "the number of a folder that is into it, or name another folder"
        )
