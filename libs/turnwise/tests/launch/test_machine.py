from collections import namedtuple
from pathlib import Path

import pytest
from turnwise.launch import machine
from turnwise.launch.machine import check_disk, check_gpus, training_bytes
from turnwise.launch.model_files import parameters
from turnwise.launch.plan import Plan, make_plan
from turnwise.launch.preset import read_run
from turnwise.preflight import Line

Usage = namedtuple("Usage", "total used free")
FILE = """
[model]
name = "qwen3-8B"
[tau]
[cluster]
actor-num-gpus-per-node = 4
colocate = true
[rollout]
prompt-data = "/data/rows.jsonl"
num-rollout = 100
rollout-batch-size = 4
rollout-max-context-len = 4096
[perf]
tensor-model-parallel-size = 2
[misc]
accumulate-allreduce-grads-in-fp32 = true
[ckpt]
hf-checkpoint = "/model"
save = "/checkpoints/run"
save-interval = 20
[sglang]
sglang-mem-fraction-static = 0.7
"""
EIGHT_BILLION = 8_000_000_000


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "run.toml").write_text(FILE)
    return make_plan(read_run(tmp_path / "run.toml"), run_dir=tmp_path)


@pytest.mark.parametrize(("free_gb", "verdict"), [(100, "FAIL"), (300, "note"), (600, "ok")])
def test_a_disk_must_hold_two_checkpoints_and_should_hold_all(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, free_gb: int, verdict: str
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, free_gb * 10**9))
    line = check_disk(plan, EIGHT_BILLION)
    assert line.verdict == verdict
    assert line.found == f"{free_gb} GB free for /checkpoints/run, 5 checkpoints of 112 GB"


@pytest.mark.parametrize(
    ("more", "bytes_each"),
    [
        ("", 6 / 2 + 12 / 4),
        ("--accumulate-allreduce-grads-in-fp32 false", 4 / 2 + 12 / 4),
        ("--optimizer-cpu-offload", 6 / 2),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", 6 / 2 + 6 / 4),
        ("--use-precision-aware-optimizer", 6 / 2 + 6 / 4),
        ("--num-experts 64 --expert-model-parallel-size 4", 6 / 8 + 12 / 8),
    ],
)
def test_state_is_split_by_model_parallel_and_the_optimizer_over_all_gpus(
    tmp_path: Path, more: str, bytes_each: float
) -> None:
    (tmp_path / "run.toml").write_text(FILE)
    made = make_plan(read_run(tmp_path / "run.toml", more.split()), run_dir=tmp_path)
    assert training_bytes(made, EIGHT_BILLION) == EIGHT_BILLION * bytes_each


def gpu_lines(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, gpus: list[tuple[str, int, int]]
) -> dict[str, Line]:
    monkeypatch.setattr(machine, "gpus_here", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return {line.name: line for line in check_gpus(plan, EIGHT_BILLION)}


def test_a_gpu_that_is_too_small_for_the_trainers_state_fails_with_the_mend(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = gpu_lines(plan, monkeypatch, [("H100", 80 * 10**9, 0)] * 4)
    assert large["GPU memory"].verdict == "ok"
    assert "48 GB for weights" in large["GPU memory"].found
    assert "SGLang takes 56 GB" in large["GPU memory"].found
    small = gpu_lines(plan, monkeypatch, [("A100", 40 * 10**9, 0)] * 4)
    assert small["GPU memory"].verdict == "FAIL"
    assert "tensor-model-parallel-size" in small["GPU memory"].remedy


@pytest.mark.parametrize(
    ("used_gb", "ours", "verdict"),
    [(1, False, "ok"), (10, False, "note"), (40, False, "FAIL"), (40, True, "note")],
)
def test_a_gpu_in_use_fails_a_run_only_where_too_little_is_left_for_it(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, used_gb: int, ours: bool, verdict: str
) -> None:
    gpus = [("H100", 80 * 10**9, used_gb * 10**9)] * 4
    monkeypatch.setattr(machine, "gpus_here", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    lines = {line.name: line for line in check_gpus(plan, EIGHT_BILLION, ours=ours)}
    assert lines["GPUs"].verdict == verdict


def test_gpus_that_the_run_does_not_see_are_not_looked_at(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [("H100", 80 * 10**9, 70 * 10**9)] * 4 + [("H200", 140 * 10**9, 0)] * 4
    monkeypatch.setattr(machine, "gpus_here", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert [line.verdict for line in check_gpus(plan, EIGHT_BILLION)] == ["ok", "ok"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert [line.verdict for line in check_gpus(plan, EIGHT_BILLION)][0] == "FAIL"


def test_a_run_that_saves_once_needs_room_for_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.toml").write_text(FILE.replace("save-interval = 20", ""))
    made = make_plan(read_run(tmp_path / "run.toml"), run_dir=tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, 120 * 10**9))
    assert check_disk(made, EIGHT_BILLION).verdict == "ok"


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen2.5-3B", 3.09), ("qwen2.5-7B", 7.62), ("qwen3-4B", 4.02), ("qwen3-8B", 8.19)],
)
def test_parameters_by_formula_are_those_that_the_models_have(
    tmp_path: Path, name: str, billions: float
) -> None:
    (tmp_path / "run.toml").write_text(FILE.replace("qwen3-8B", name))
    options = make_plan(read_run(tmp_path / "run.toml"), run_dir=tmp_path).options
    assert round(parameters(tmp_path, options) / 1e9, 2) == billions


def test_mixtures_of_experts_are_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(FILE.replace("qwen3-8B", "qwen3-30B-A3B"))
    options = make_plan(read_run(tmp_path / "run.toml"), run_dir=tmp_path).options
    assert parameters(tmp_path, options) == 0
