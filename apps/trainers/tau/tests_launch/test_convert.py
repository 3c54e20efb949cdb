import sys
from pathlib import Path

import pytest
from turnwise.command import PreflightError, RunError
from turnwise.config import ConfigError
from turnwise.launch.convert import convert

from apps.trainers.tau.tests_launch.folders import (
    SHAPES,
    write_policy,
    write_torch_dist,
    write_weights,
)

# slime's converters, as far as their command lines and results go.
TO_TORCH_DIST = """
import os, pathlib, sys
words = sys.argv[1:]
assert "--num-layers" in words and os.environ["PYTHONPATH"].endswith("/megatron")
target = pathlib.Path(words[words.index("--save") + 1])
(target / "release").mkdir(parents=True)
for name, size in (("common.pt", 9), (".metadata", 9), ("__0_0.distcp", {size})):
    (target / "release" / name).write_bytes(bytes(size))
(target / "latest_checkpointed_iteration.txt").write_text("release")
print("converted", words[words.index("--rotary-base") + 1])
"""
TO_HF = """
import pathlib, shutil, sys
words = sys.argv[1:]
source = pathlib.Path(words[words.index("--input-dir") + 1])
target = pathlib.Path(words[words.index("--output-dir") + 1])
origin = pathlib.Path(words[words.index("--origin-hf-dir") + 1])
assert source.is_dir() and not target.exists()
assert words[words.index("--vocab-size") + 1] == "151936"
shutil.copytree(origin, target)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_policy(tmp_path / "hf", tokenizer=False)
    tools = tmp_path / "slime" / "tools"
    tools.mkdir(parents=True)
    (tools / "convert_hf_to_torch_dist.py").write_text(TO_TORCH_DIST.format(size=400))
    (tools / "convert_torch_dist_to_hf.py").write_text(TO_HF)
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
[model]
name = "qwen2.5-0.5B"
[tau]
[ray]
python = "{sys.executable}"
slime-dir = "{tmp_path}/slime"
megatron-dir = "/megatron"
[cluster]
colocate = true
[rollout]
prompt-data = "/data/rows.jsonl"
num-rollout = 1
rollout-batch-size = 4
rollout-max-context-len = 4096
[ckpt]
hf-checkpoint = "{tmp_path}/hf"
ref-load = "{tmp_path}/ref"
save = "{tmp_path}/run"
"""
    )
    return path


def run(path: Path, *words: str) -> None:
    convert("tau", ["--config", str(path), *words])


def test_a_policy_is_converted_with_the_models_arguments_and_the_result_looked_at(
    file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(file)
    said = capfd.readouterr().out
    assert "converted 1000000" in said
    assert said.rstrip().endswith(f"{tmp_path}/ref/release: 1 shards, 0.0 GB")
    with pytest.raises(PreflightError, match="/ref: is there already; remove it"):
        run(file)


def test_what_shapes_the_network_reaches_the_converter_wherever_it_stands(
    file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file.write_text(
        f"{file.read_text()}[misc]\n"
        'spec = ["mine", "get_spec"]\ntransformer-impl = "local"\n'
        "no-gradient-accumulation-fusion = true\nattention-dropout = 0.0\nlr = 1e-6\n"
    )
    run(file)
    (command,) = [line for line in capfd.readouterr().out.splitlines() if "running" in line]
    words = "--spec mine get_spec --transformer-impl local --no-gradient-accumulation-fusion"
    assert all(f"--{word.strip()}" in command for word in words.split("--")[1:]), command
    assert "--lr" not in command and "--num-rollout" not in command


def test_a_policy_of_another_size_is_refused_before_the_converter_starts(
    file: Path, tmp_path: Path
) -> None:
    with pytest.raises(PreflightError) as error:
        run(file, "--model.name", "qwen2.5-1.5B")
    assert "--hidden-size 1536, hidden_size 896" in str(error.value)
    with pytest.raises(PreflightError, match="--rotary-base 500, rope_theta 1e"):
        run(file, "--rotary-base", "500")
    assert not (tmp_path / "ref").exists()


def test_missing_weights_a_missing_converter_and_a_missing_folder_are_named(
    file: Path, tmp_path: Path
) -> None:
    with pytest.raises(PreflightError, match="converter .*convert_hf_to_torch_dist.py is not"):
        run(file, "--ray.slime-dir", str(tmp_path))
    (tmp_path / "hf/model.safetensors").write_bytes(b"")
    with pytest.raises(PreflightError, match=r"1 weight file\(s\) missing or empty"):
        run(file)
    with pytest.raises(PreflightError, match="/no is no folder"):
        run(file, "--hf-checkpoint", "/no")


def test_a_converter_that_fails_or_writes_too_little_is_a_failed_run(
    file: Path, tmp_path: Path
) -> None:
    script = tmp_path / "slime/tools/convert_hf_to_torch_dist.py"
    script.write_text("raise SystemExit(3)")
    with pytest.raises(RunError, match="converter ended with status 3"):
        run(file)
    script.write_text(TO_TORCH_DIST.format(size=40))
    with pytest.raises(RunError, match=r"/ref: has 40 bytes for \d+ of weights"):
        run(file)


def test_the_latest_checkpoint_goes_back_with_every_tensor_of_the_origin(
    file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_torch_dist(tmp_path / "run", 19)
    run(file, "--to", "hf")
    said = capfd.readouterr().out
    assert f"{tmp_path}/run_hf/iter_0000019: {len(SHAPES)} tensors" in said


def test_an_iteration_that_is_not_there_is_refused_with_those_that_are(
    file: Path, tmp_path: Path
) -> None:
    with pytest.raises(PreflightError, match="holds no checkpoint yet"):
        run(file, "--to", "hf")
    write_torch_dist(tmp_path / "run", 19)
    with pytest.raises(ConfigError, match="--iteration 3: .*/run has 19"):
        run(file, "--to", "hf", "--iteration", "3")
    (tmp_path / "run/iter_0000019/common.pt").unlink()
    with pytest.raises(PreflightError, match="lacks common.pt"):
        run(file, "--to", "hf")


def test_a_tensor_of_another_shape_is_found(file: Path, tmp_path: Path) -> None:
    write_torch_dist(tmp_path / "run", 19)
    script = tmp_path / "slime/tools/convert_torch_dist_to_hf.py"
    wrong = tmp_path / "wrong.safetensors"
    write_weights(wrong, {**SHAPES, "model.embed_tokens.weight": (8, 4)})
    script.write_text(f"{TO_HF}shutil.copy('{wrong}', target / 'model.safetensors')\n")
    with pytest.raises(RunError, match=r"embed_tokens.weight is \(8, 4\), not \(6, 4\)"):
        run(file, "--to", "hf")
