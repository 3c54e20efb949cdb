"""Checkpoints: whole or not at all.

`checkpoints/step_N/` holds what `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer` read,
`trainer.pt` (optimiser with its masters, torch's random state and, with a lag, the weights that
sampled the rollouts to come), `state.json` (what the training loop wants back) and `manifest.json`
with the size and SHA-256 of every other file. With adapters the weights are merged ones, for
whoever reads the folder, and `adapter/` holds the adapters, which are what training goes on with.

1. check that the disk has room; 2. write into `.step_N.partial`; 3. sync every file; 4. write and
sync the manifest; 5. rename; 6. sync the parent folder. A crash leaves a `.partial` folder that
nothing reads and that the next save removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from turnwise.config import ConfigError
from turnwise.local.adapters import adapter_layers, load_adapters, save_adapters
from turnwise.local.optimizer import PolicyOptimizer
from turnwise.local.policy_files import read_typed
from turnwise.local.weights import save_model
from turnwise.printable import one_line
from turnwise.run.disk import reading, writing
from turnwise.run.folder import require_space

MANIFEST = "manifest.json"
STATE = "state.json"
TRAINER = "trainer.pt"
ADAPTER_FOLDER = "adapter"
MOMENTS = frozenset({"exp_avg", "exp_avg_sq", "state1", "state2"})
"""torch's names, and bitsandbytes'."""


class _File(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True):
    files: dict[str, _File]


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    model: Any,
    tokenizer: Any,
    optimizer: PolicyOptimizer,
    state: Mapping[str, Any],
    sampler: Sequence[Tensor] | None = None,
) -> Path:
    """Writes `folder/step_N`, replacing one of the same step.

    Args:
        folder: Made if it is missing.
        state: JSON-able: data order, counters, seeds.
        sampler: As of `turnwise.local.learner.Learner`.

    Returns:
        The checkpoint's folder.

    Raises:
        PreflightError: if the disk has too little room; nothing was written.
        RunError: if writing fails; the step has no folder then, or the one that it had.
    """
    target, partial = folder / f"step_{step}", folder / f".step_{step}.partial"
    with writing(target):
        folder.mkdir(parents=True, exist_ok=True)
        require_space(folder, checkpoint_bytes(model), "a checkpoint")
        for stale in folder.glob(".step_*"):
            shutil.rmtree(stale)
        partial.mkdir()
        trainer: dict[str, Any] = {"optimizer": optimizer.state_dict(), "rng": _rng_state()}
        if sampler is not None:
            trainer["sampler"] = list(sampler)
        _write(target, partial, step, model, tokenizer, trainer, state)
    return target


def _write(
    target: Path,
    partial: Path,
    step: int,
    model: Any,
    tokenizer: Any,
    trainer: Mapping[str, Any],
    state: Mapping[str, Any],
) -> None:
    replaced = target.with_name(f".step_{step}.replaced")
    try:
        save_model(model, partial)
        if adapter_layers(model):
            save_adapters(model, partial / ADAPTER_FOLDER)
        tokenizer.save_pretrained(partial)
        with (partial / TRAINER).open("wb") as stream:
            torch.save(trainer, stream)
        (partial / STATE).write_text(json.dumps(dict(state)), encoding="utf-8")
        _write_manifest(partial, step)
        if target.exists():
            target.rename(replaced)
        partial.rename(target)
        _sync(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        raise


def load_checkpoint(
    path: Path, *, model: nn.Module, optimizer: PolicyOptimizer
) -> tuple[dict[str, Any], list[Tensor] | None]:
    """Restores weights, optimiser and torch's random state.

    Returns:
        The loop's state, and the sampler's weights where there are some; see `save_checkpoint`.

    Raises:
        ConfigError: if the checkpoint is not whole (see `verify_checkpoint`), or was made for
            another model.
    """
    verify_checkpoint(path)
    state = read_typed(path / STATE, dict)

    # Whatever is in files whose hashes fit, the run's own or not: torch and transformers fail on
    # it in many ways.
    try:
        _load_weights(path, model)
        trainer = torch.load(path / TRAINER, map_location="cpu", weights_only=True)
        optimizer.load_state_dict(trainer["optimizer"])
        _check_shapes(optimizer)
        _set_rng_state(trainer["rng"])
    except Exception as error:
        raise ConfigError(f"{path} is of another model: {error}") from error
    return state, trainer.get("sampler")


def _load_weights(path: Path, model: nn.Module) -> None:
    if adapter_layers(model):
        # The merged weights of the folder are rounded; the base is the model's already.
        load_adapters(model, path / ADAPTER_FOLDER)
        return
    from transformers import AutoModelForCausalLM

    saved = AutoModelForCausalLM.from_pretrained(
        path, local_files_only=True, trust_remote_code=False
    )
    model.load_state_dict(saved.state_dict())


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints under `folder`, oldest step first; their hashes are not checked."""
    found = []
    for path in folder.glob("step_*"):
        match = re.fullmatch(r"step_(\d{1,12})", path.name)
        if match and (path / MANIFEST).is_file():
            found.append((int(match[1]), path))
    return [path for _, path in sorted(found)]


def verify_checkpoint(path: Path) -> None:
    """Compares every file with the manifest.

    Raises:
        ConfigError: naming the first file that is missing, cut short or changed.
    """
    if not (path / MANIFEST).exists():
        raise ConfigError(
            f"{path} is not a complete checkpoint: it has no {MANIFEST}; use an earlier step"
        )
    manifest = read_typed(path / MANIFEST, _Manifest)
    for name in (STATE, TRAINER):
        if (path / name).exists() and name not in manifest.files:
            raise ConfigError(f"{path / MANIFEST}: files: {name} is not named")
    for name, expected in manifest.files.items():
        file = path / name
        with reading(file):
            if not file.is_file():
                raise ConfigError(
                    f"{path} is not a complete checkpoint: {one_line(name, 100)} is missing"
                )
            size = file.stat().st_size
            if size != expected.bytes:
                raise ConfigError(f"{file} has {size} bytes, {expected.bytes} were written")
            if _sha256(file) != expected.sha256:
                raise ConfigError(f"{file} was changed after it was written (SHA-256 differs)")


def checkpoint_bytes(model: nn.Module) -> int:
    """What a checkpoint of `model` with AdamW's state takes on disk, about."""
    count = 16 << 20
    for weight in model.parameters():
        count += weight.numel() * weight.element_size()
        if weight.requires_grad:
            # Two moments, and the master of a weight that is not float32.
            count += weight.numel() * (8 if weight.dtype == torch.float32 else 12)
    return count


def _write_manifest(folder: Path, step: int) -> None:
    files = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        _sync(file)
        name = file.relative_to(folder).as_posix()
        files[name] = {"bytes": file.stat().st_size, "sha256": _sha256(file)}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"step": step, "files": files}, indent=1), encoding="utf-8")
    _sync(manifest)
    _sync(folder)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_shapes(optimizer: PolicyOptimizer) -> None:
    """Raises ValueError where a loaded moment is not of its weight's shape."""
    for weight, state in optimizer.state.items():
        for name in MOMENTS & state.keys():
            value = state[name]
            if value.shape != weight.shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, not {weight.shape}")


def _rng_state() -> dict[str, Any]:
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set_rng_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
