"""Checkpoints come back bit-equal, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from turnwise.command import PreflightError, RunError
from turnwise.config import ConfigError
from turnwise.local.checkpoint import (
    MANIFEST,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    verify_checkpoint,
)
from turnwise.local.policy import load_policy
from turnwise.local.update import Updater, UpdateSettings, train_rows

Make = Callable[..., Any]


def updater(model: Any) -> Updater:
    return Updater(model, UpdateSettings(lr=1e-2))


def train(trainer: Updater, make_samples: Make, step: int) -> None:
    advantages = np.linspace(-1, 1, 4)
    trainer.update(train_rows(make_samples(4, step), advantages, np.full(4, 0.1), max_tokens=500))


def save(folder: Path, step: int, trainer: Updater, tokenizer: Any, **options: Any) -> Path:
    return save_checkpoint(
        folder,
        step,
        model=trainer.model,
        tokenizer=tokenizer,
        optimizer=trainer.optimizer,
        state={"step": step, "order": [3, 1, 2]},
        **options,
    )


def test_training_goes_on_bit_equal_after_a_load(
    tmp_path: Path, tokenizer: Any, make_policy: Make, make_samples: Make
) -> None:
    unbroken = updater(make_policy())
    train(unbroken, make_samples, 0)
    path = save(tmp_path, 1, unbroken, tokenizer)
    draw = torch.rand(3)
    train(unbroken, make_samples, 1)

    resumed = updater(make_policy(seed=5))
    state, _ = load_checkpoint(path, model=resumed.model, optimizer=resumed.optimizer)
    assert state == {"step": 1, "order": [3, 1, 2]}
    assert torch.equal(torch.rand(3), draw)
    train(resumed, make_samples, 1)
    for one, other in zip(unbroken.parameters, resumed.parameters, strict=True):
        assert torch.equal(one, other)


def test_transformers_loads_a_checkpoint(tmp_path: Path, tokenizer: Any, make_policy: Make) -> None:
    trainer = updater(make_policy())
    path = save(tmp_path, 1, trainer, tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
    for one, other in zip(trainer.parameters, loaded.parameters(), strict=True):
        assert torch.equal(one, other)
    assert AutoTokenizer.from_pretrained(path, local_files_only=True).chat_template
    assert load_policy(str(path)).model.config.vocab_size == 259


def damage_missing(path: Path) -> None:
    (path / "trainer.pt").unlink()


def damage_cut(path: Path) -> None:
    os.truncate(path / "model.safetensors", 1000)


def damage_changed(path: Path) -> None:
    with (path / "model.safetensors").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([byte[0] ^ 1]))


def damage_manifest(path: Path) -> None:
    os.truncate(path / MANIFEST, 20)


def damage_no_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_missing, "trainer.pt is missing"),
        (damage_cut, "has 1000 bytes"),
        (damage_changed, "SHA-256 differs"),
        (damage_manifest, "manifest.json: not valid JSON"),
        (damage_no_manifest, "has no manifest.json"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(
    tmp_path: Path,
    tokenizer: Any,
    make_policy: Make,
    damage: Callable[[Path], None],
    message: str,
) -> None:
    path = save(tmp_path, 1, updater(make_policy()), tokenizer)
    verify_checkpoint(path)
    damage(path)
    resumed = updater(make_policy(seed=5))
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(path, model=resumed.model, optimizer=resumed.optimizer)
    for one, other in zip(resumed.parameters, make_policy(seed=5).parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, tokenizer: Any, make_policy: Make
) -> None:
    path = save(tmp_path, 1, updater(make_policy()), tokenizer)
    other = updater(make_policy(hidden_size=64))
    with pytest.raises(ConfigError, match="of another model"):
        load_checkpoint(path, model=other.model, optimizer=other.optimizer)


def test_a_save_that_fails_leaves_no_checkpoint_and_the_older_ones_alone(
    tmp_path: Path, tokenizer: Any, make_policy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = updater(make_policy())
    first = save(tmp_path, 1, trainer, tokenizer)

    def broken(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", broken)
        for step in (1, 2):
            with pytest.raises(RunError, match=f"step_{step}: can't be written: No space left"):
                save(tmp_path, step, trainer, tokenizer)
    verify_checkpoint(first)
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_what_a_killed_save_left_is_ignored_and_removed(
    tmp_path: Path, tokenizer: Any, make_policy: Make
) -> None:
    (tmp_path / ".step_1.partial").mkdir()
    (tmp_path / ".step_1.partial" / "model.safetensors").write_bytes(b"half")
    assert list_checkpoints(tmp_path) == []
    save(tmp_path, 2, updater(make_policy()), tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["step_2"]


def test_a_step_that_is_saved_again_replaces_the_old_one(
    tmp_path: Path, tokenizer: Any, make_policy: Make
) -> None:
    save(tmp_path, 1, updater(make_policy()), tokenizer)
    trainer = updater(make_policy(seed=1))
    path = save(tmp_path, 1, trainer, tokenizer)
    assert torch.equal(load_policy(str(path)).model.lm_head.weight, trainer.model.lm_head.weight)  # type: ignore[union-attr, arg-type]
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_1"]


def test_a_full_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, tokenizer: Any, make_policy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 10**6))
    with pytest.raises(PreflightError, match="MB needed for a checkpoint, 1.0 MB free"):
        save(tmp_path / "checkpoints", 1, updater(make_policy()), tokenizer)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_the_manifest_names_every_file(tmp_path: Path, tokenizer: Any, make_policy: Make) -> None:
    path = save(tmp_path, 4, updater(make_policy()), tokenizer)
    manifest = json.loads((path / MANIFEST).read_text())
    assert manifest["step"] == 4
    assert set(manifest["files"]) == {p.name for p in path.iterdir()} - {MANIFEST}
