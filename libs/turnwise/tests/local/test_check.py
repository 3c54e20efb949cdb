"""What `check --backend local` finds, with its numbers."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from turnwise.engine.sglang import TRIED
from turnwise.launch.check import check
from turnwise.local.check import gpu_lines, sglang_line, shape_of
from turnwise.local.options import TrainOptions
from turnwise.preflight import Line
from turnwise.testing.policy_server import fake_site

GB = 10**9
CARD = ("NVIDIA H200", 150 * GB, 0)


def options(**changes: object) -> TrainOptions:
    return TrainOptions.model_validate({"device": "cuda", "engine": "sglang", **changes})


def lines(folder: Path, *cards: tuple[str, int, int], **changes: object) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {"ok": [], "FAIL": []}
    for line in gpu_lines(options(**changes), shape_of(str(folder)), cards):
        found.setdefault(line.verdict, []).append(line)
    return found


def test_server_and_trainer_are_held_against_the_memory_of_their_card(policy_folder: Path) -> None:
    found = lines(policy_folder, CARD)
    assert not found["FAIL"]
    said = " | ".join(line.found for line in found["ok"])
    assert "the server's share 60.0 GB" in said and "150.0 GB, 0.0 in use" in said
    assert "89.50 GB are free" in said


def test_a_card_that_others_use_is_too_small_with_the_numbers(policy_folder: Path) -> None:
    line, trainer = lines(policy_folder, ("NVIDIA H200", 150 * GB, 100 * GB))["FAIL"]
    assert trainer.name == "memory"
    assert "share 60.0 GB" in line.found and "50.0 GB are free" in line.found
    assert "--sglang-mem-fraction-static" in line.remedy


def test_a_share_that_the_weights_fill_is_too_small(policy_folder: Path) -> None:
    found = lines(policy_folder, CARD, sglang_mem_fraction_static=1e-9)
    assert any("0.0 of it weights" in line.found for line in found["FAIL"])


def test_a_trainer_that_does_not_fit_beside_the_server_fails(policy_folder: Path) -> None:
    (line,) = lines(policy_folder, ("card", 840 * 10**6, 0))["FAIL"]
    assert "but 0.00 GB are free" in line.found
    assert not lines(policy_folder, ("card", 4 * GB, 0))["FAIL"]


def test_two_cards_are_looked_at_one_for_each(policy_folder: Path) -> None:
    found = lines(policy_folder, CARD, CARD, engine_device="cuda:1")
    assert not found["FAIL"]
    said = {line.name: line.found for line in found["ok"]}
    assert "share 127.5 GB" in " ".join(line.found for line in found["ok"])
    assert {"GPU 0", "GPU 1"} <= set(said)
    (line,) = lines(policy_folder, CARD, engine_device="cuda:1")["FAIL"]
    assert line.found == "1 here, 2 wanted"


def test_sglang_is_asked_for_where_it_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = sglang_line(sys.executable)
    assert missing.verdict == "FAIL" and "has no sglang" in missing.found
    assert "--engine-python" in missing.remedy
    monkeypatch.setenv("PYTHONPATH", fake_site(tmp_path / "site")["PYTHONPATH"])
    other = sglang_line(sys.executable)
    assert other.verdict == "note" and TRIED in other.remedy
    assert sglang_line("/nowhere/python").verdict == "FAIL"
    assert sglang_line("/bin/false").verdict == "skip"


def test_the_command_prints_a_table_and_says_3_where_a_line_fails(
    policy_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    argv = ["--backend", "local", "--hf-checkpoint", str(policy_folder)]
    assert check("tau", argv) == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert check("tau", [*argv, "--engine", "sglang", "--engine-port", port]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "is taken" in out and "has no sglang" in out
    assert check("tau", [*argv, "--engine", "vllm"]) == 3
    assert "configuration" in capsys.readouterr().out
