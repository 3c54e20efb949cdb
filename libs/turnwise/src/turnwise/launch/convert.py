"""Runs slime's own checkpoint converters with the model arguments of a run's file.

`torch_dist` reads the file's --hf-checkpoint and writes its --ref-load. `hf` reads the latest
checkpoint of its --save (or --iteration) and writes a folder beside it that transformers and
SGLang load. Inputs are checked before the converter starts, its result after it ended.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.command import PreflightError, RunError
from turnwise.config import ConfigError
from turnwise.launch.flags import split_arguments
from turnwise.launch.machine import slime_environment
from turnwise.launch.model_files import (
    check_figures,
    check_hf_folder,
    check_torch_dist,
    iterations,
    read_json,
    tensor_shapes,
    weight_bytes,
)
from turnwise.launch.plan import Plan, make_plan
from turnwise.launch.preset import RunConfig, read_run
from turnwise.launch.processes import end_family, identify
from turnwise.launch.resume import iteration
from turnwise.preflight import Line

STOP_GRACE_S = 10.0
# torch_dist holds the same numbers; padding adds some, tied embeddings are kept once.
LEAST_SHARE = 0.9
# What decides which network Megatron builds or how its layers are made, wherever the file has it:
# the converter must build what the job will.
SHAPING = frozenset(
    (
        *("--spec", "--transformer-impl", "--custom-model-provider-path", "--normalization"),
        *("--no-gradient-accumulation-fusion", "--no-rope-fusion", "--no-masked-softmax-fusion"),
        *("--no-persist-layer-norm", "--no-bias-swiglu-fusion", "--no-bias-gelu-fusion"),
        *("--attention-backend", "--qk-layernorm", "--kv-channels", "--rotary-percent"),
        *("--untie-embeddings-and-output-weights", "--make-vocab-size-divisible-by"),
        *("--use-cpu-initialization", "--padded-vocab-size", "--mtp-num-layers"),
    )
)
MEND = "remove the folder and convert again"


@dataclass(frozen=True, slots=True)
class Conversion:
    """One run of a converter.

    Attributes:
        command: The words, interpreter first.
        target: The folder that it writes.
    """

    command: tuple[str, ...]
    target: Path


def to_torch_dist(config: RunConfig, plan: Plan, gpus: int) -> Conversion:
    """The conversion of --hf-checkpoint to --ref-load, its inputs checked.

    Raises:
        PreflightError: naming each thing that is missing or does not fit.
    """
    source, target = _path(plan, "--hf-checkpoint"), _path(plan, "--ref-load")
    lines = list(check_hf_folder("policy", source))
    found = read_json(source / "config.json")
    if isinstance(found, dict):
        lines += check_figures("model", found, plan.options)
    _refuse(lines)
    _check_target(target, weight_bytes(source))
    script = _script(config, "convert_hf_to_torch_dist.py")
    run = [config.ray.python, str(script)]
    if gpus > 1:
        run = [config.ray.python, "-m", "torch.distributed.run", "--standalone"]
        run += ["--nproc-per-node", str(gpus), str(script)]
    given = {name for name, _ in split_arguments(config.model.words())} | SHAPING
    model = [
        word for name, values in plan.options.items() if name in given for word in (name, *values)
    ]
    command = (*run, *model, "--hf-checkpoint", str(source), "--save", str(target))
    return Conversion(command, target)


def to_hugging_face(config: RunConfig, plan: Plan, step: int | None) -> Conversion:
    """The conversion of a checkpoint of --save, its inputs checked.

    Raises:
        ConfigError: there is no such iteration.
        PreflightError: naming each thing that is missing.
    """
    source, origin = _path(plan, "--save"), _path(plan, "--hf-checkpoint")
    latest = iteration(source)
    if step is None and latest is None:
        raise PreflightError(f"--save {source}: holds no checkpoint yet")
    number = step if step is not None else int(latest or 0)
    if number not in iterations(source):
        there = ", ".join(map(str, iterations(source))) or "none"
        raise ConfigError(f"--iteration {number}: {source} has {there}")
    folder = source / f"iter_{number:07d}"
    absent = [name for name in ("common.pt", ".metadata") if not (folder / name).is_file()]
    if absent:
        raise PreflightError(f"{folder}: lacks {', '.join(absent)}; it was not written to the end")
    _refuse(check_hf_folder("origin", origin))
    target = source.with_name(f"{source.name}_hf") / folder.name
    _check_target(target, weight_bytes(origin))
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        target.rmdir()
    vocabulary = plan.value("--vocab-size")
    script = _script(config, "convert_torch_dist_to_hf.py")
    command = [config.ray.python, str(script), "--input-dir", str(folder)]
    command += ["--output-dir", str(target), "--origin-hf-dir", str(origin)]
    command += ["--vocab-size", vocabulary] if vocabulary else []
    return Conversion(tuple(command), target)


def run_converter(conversion: Conversion, environment: dict[str, str]) -> None:
    """Runs it in a process group of its own, its output shown as it comes.

    Raises:
        ConfigError: the interpreter is not there.
        RunError: it failed; what it wrote stays.
        KeyboardInterrupt: a person stopped it; it has then ended.
    """
    try:
        child = subprocess.Popen(conversion.command, env=environment, start_new_session=True)
    except OSError as error:
        raise ConfigError(f"[ray] python {conversion.command[0]}: {error.strerror}") from None
    process = identify(child.pid)
    try:
        status = child.wait()
    except BaseException:
        if process is not None:
            end_family(process, STOP_GRACE_S)
        child.wait()
        raise
    if status:
        raise RunError(
            f"slime's converter ended with status {status}; {conversion.target} is not complete: "
            f"{MEND}"
        )


def check_result_torch_dist(target: Path, source: Path) -> str:
    """What was written, in words.

    Raises:
        RunError: it is not complete.
    """
    line = check_torch_dist("result", target, MEND)
    if line.verdict == "FAIL":
        raise RunError(f"{line.found}; {line.remedy}")
    written = sum(path.stat().st_size for path in target.glob("*/*.distcp"))
    if written < LEAST_SHARE * weight_bytes(source):
        raise RunError(
            f"{target}: has {written:,} bytes for {weight_bytes(source):,} of weights; {MEND}"
        )
    return line.found


def check_result_hf(target: Path, origin: Path) -> str:
    """What was written, in words.

    Raises:
        RunError: a file is missing, or a tensor's name or shape is not the origin's.
    """
    broken = [line for line in check_hf_folder("result", target) if line.verdict == "FAIL"]
    if broken:
        raise RunError(f"{broken[0].found}; {MEND}")
    made, wanted = tensor_shapes(target), tensor_shapes(origin)
    wrong = [
        f"{name} is {made.get(name, 'missing')}, not {shape}"
        for name, shape in wanted.items()
        if made.get(name) != shape
    ]
    if wrong:
        raise RunError(
            f"{target}: {len(wrong)} of {len(wanted)} tensors are not the origin's: "
            f"{'; '.join(wrong[:3])}"
        )
    return f"{target}: {len(made)} tensors with the names and shapes of {origin}"


def _path(plan: Plan, flag: str) -> Path:
    value = plan.value(flag)
    if value is None:
        raise ConfigError(f"{flag.removeprefix('--')}: is needed; set it in [ckpt]")
    return Path(value)


def _refuse(lines: Iterable[Line]) -> None:
    broken = [
        f"{line.name}: {line.found}; {line.remedy}" for line in lines if line.verdict == "FAIL"
    ]
    if broken:
        raise PreflightError("\n".join(broken))


def _check_target(target: Path, need: int) -> None:
    """The folder must be new or empty, and its disk have room."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PreflightError(f"{target}: is there already; remove it, or name another folder")
    place = target
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < need * 1.1:
        raise PreflightError(f"{target}: needs {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")


def _script(config: RunConfig, name: str) -> Path:
    script = config.ray.slime_dir / "tools" / name
    if not script.is_file():
        raise PreflightError(f"slime's converter {script} is not there; set [ray] slime-dir")
    return script


def convert(method: str, argv: Sequence[str]) -> None:
    """The command `convert` of a method's trainer.

    Args:
        method: The section that the run's file must have.
        argv: The words after the command's name.

    Raises:
        ConfigError, PreflightError, RunError: see the functions above.
    """
    parser = argparse.ArgumentParser(
        prog=f"{method}:convert",
        allow_abbrev=False,
        description="Runs slime's checkpoint converters with the model arguments of a run's file.",
        epilog="Any flag of slime, and --ray.KEY and --model.KEY, go before the file.",
    )
    parser.add_argument("--config", type=Path, required=True, help="the run's TOML file")
    parser.add_argument("--to", choices=("torch_dist", "hf"), default="torch_dist")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs to convert to torch_dist with")
    parser.add_argument(
        "--iteration", type=int, help="checkpoint to convert to hf; else the latest"
    )
    given, overrides = parser.parse_known_args(list(argv))
    config = read_run(given.config, overrides, method=method)
    plan = make_plan(config, run_dir=Path("runs/convert").absolute())
    back = given.to == "hf"
    conversion = (
        to_hugging_face(config, plan, given.iteration)
        if back
        else to_torch_dist(config, plan, given.gpus)
    )
    print(f"running {' '.join(conversion.command)}", flush=True)
    run_converter(conversion, slime_environment(config.ray, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}))
    check_result = check_result_hf if back else check_result_torch_dist
    print(check_result(conversion.target, _path(plan, "--hf-checkpoint")))
