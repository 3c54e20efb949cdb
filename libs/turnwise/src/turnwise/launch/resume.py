"""Where a run starts from, said in words before anything starts.

slime resumes from `--load` if that folder has a checkpoint of its own, and otherwise starts from
`--ref-load` without a word: a Megatron checkpoint, or for the types of `LOADED` a Hugging Face
folder as it is. A folder that holds something else is refused here, because slime would train from
the start and write its checkpoints among those files; so is a reference that is not there, which
slime finds when everything has been loaded.
"""

from __future__ import annotations

import json
from pathlib import Path

from turnwise.command import PreflightError
from turnwise.run.folder import RunFolder

TRACKER = "latest_checkpointed_iteration.txt"
LOADED = frozenset(
    (
        *("deepseek_v3", "deepseek_v32", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"),
        *("kimi_k2", "llama", "mimo", "minimax_m2", "qwen2", "qwen2_moe", "qwen3", "qwen3_5"),
        *("qwen3_5_moe", "qwen3_moe", "qwen3_next"),
    )
)
"""Types of models, as config.json names them, whose Hugging Face weights slime loads itself."""


def model_type(folder: Path) -> str | None:
    """The type that a Hugging Face folder's config.json names; None if it is none."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    kind = found.get("model_type") if isinstance(found, dict) else None
    return kind if isinstance(kind, str) else None


def iteration(folder: Path) -> str | None:
    """The iteration that a Megatron checkpoint folder names as its latest, or None."""
    try:
        return (folder / TRACKER).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def starting_point(load: str | None, ref_load: str | None, *, needs_reference: bool = False) -> str:
    """What the run will start from.

    Args:
        load: The value of `--load`, or None.
        ref_load: The value of `--ref-load`, or None.
        needs_reference: A run that resumes loads the reference too, for its KL.

    Raises:
        PreflightError: `load` holds something, but no checkpoint that slime would read; or there is
            no reference where one is needed.
    """
    if needs_reference:
        _check_reference(ref_load)
    if load is None:
        return f"first run: there is no --load, so training starts {_origin(ref_load)}"
    folder = Path(load)
    if not folder.exists():
        return (
            f"first run: --load {load} does not exist yet, so training starts {_origin(ref_load)}"
        )
    if not folder.is_dir():
        raise PreflightError(f"--load {load}: is a file; name the folder of the checkpoints")
    if not any(folder.iterdir()):
        return f"first run: --load {load} is empty, so training starts {_origin(ref_load)}"
    latest = iteration(folder)
    if latest is not None:
        _check_iteration(folder, latest)
        return f"resumes from --load {load}, iteration {latest}"
    if model_type(folder) in LOADED:
        return f"first run: training starts from the Hugging Face weights in --load {load}"
    raise PreflightError(
        f"--load {load}: is not empty, but has no {TRACKER}; slime would start anew and write "
        "among these files. For a first run name an empty or absent folder; to resume, name the "
        "folder that --save wrote"
    )


def made_again(load: str | None, run_dir: Path) -> str:
    """Which steps of the run folder the checkpoint has not seen, as the end of a sentence.

    Their rows are cut off when the run gets there; "" where none is lost.
    """
    latest = iteration(Path(load)) if load is not None else None
    if latest is None or not latest.isdecimal():
        return ""
    rows = RunFolder(run_dir).metric_rows()
    last = max((row["step"] for row in rows if row["kind"] == "train"), default=0)
    # Iteration i is saved after the rollout of that number, counted from 0, which is step i + 1.
    first = int(latest) + 2
    if last < first:
        return ""
    return f"; lost and made again: step{'s' * (last > first)} {first}" + (
        f" to {last}" if last > first else ""
    )


def _origin(ref_load: str | None) -> str:
    _check_reference(ref_load)
    return f"from the reference model {ref_load}"


def _check_reference(ref_load: str | None) -> None:
    remedy = (
        "make it with convert, or name the Hugging Face folder itself for qwen2, qwen3 and others"
    )
    if ref_load is None:
        raise PreflightError(f"there is no --ref-load, which training starts from: {remedy}")
    folder = Path(ref_load)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise PreflightError(f"--ref-load {ref_load}: {what}; {remedy}")
    if not any(folder.iterdir()):
        raise PreflightError(f"--ref-load {ref_load}: is empty; {remedy}")


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
